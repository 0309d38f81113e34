"""A steering vector: a direction at each of some sites, to be added to every token's numbers there.

In a file it is safetensors: a tensor named after each site, and in the metadata what it was made from and by which model.

Shapes: a direction has the shape of one token's numbers at its site, such as (hidden) or (heads, head_size).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint
from glassformer.checkpoint.folder import read_safetensors
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.changes import Change
from glassformer.ground.errors import CheckpointError, InputError, SettingError, SiteError, reason_of
from glassformer.ground.files import open_regular, write_bytes
from glassformer.ground.typecheck import brief


def token_site(blueprint: Blueprint, site: str, model: str) -> tuple[int, tuple[int, ...]]:
    """The axis of a site's tokens, without the batch, and the shape of one token's numbers there.

    >>> token_site(blueprint, "blocks.0.attention.heads", "tiny")  # (heads, length, head_size)
    (1, (4, 16))
    """
    blueprint.site_names.expand([site])  # which refuses a site that does not exist, and suggests one
    if site not in blueprint.sites:
        raise SiteError(f"{model} has no site {site!r}.")
    blueprint.site_names.check_numbered(site)
    shape = blueprint.sites[site][1:]
    axes = [axis for axis, size in enumerate(shape) if isinstance(size, str)]
    if len(axes) != 1:
        raise SiteError(f"{site!r} has no numbers of its own for each token. Name another, such as blocks.3.residual.")
    return axes[0], tuple(size for size in shape if isinstance(size, int))


Floats: TypeAlias = npt.NDArray[np.float32]
FORMAT = "glassformer.steering/1"
SUFFIXES = (".safetensors", ".gguf")


@dataclass(frozen=True, eq=False)
class SteeringVector:
    """Directions by site, and what they were made from."""

    directions: Mapping[str, Floats]
    model: str = ""  # the name of the model that they were made with
    weights: str | None = None  # the digest of its weights; None: not known
    method: str = ""
    tokens: str = ""  # of each text: 'last' or 'all'
    pairs: int = 0

    @property
    def norm(self) -> float:
        """The length of the longest direction."""
        return max(float(np.linalg.norm(direction)) for direction in self.directions.values())

    def changes(self, strength: float, blueprint: Blueprint, model: str = "the model") -> dict[str, Change]:
        """The changes that add it `strength` times, at the sites of a model; refused where they do not fit."""
        changes = {}
        for site, direction in self.directions.items():
            axis, shape = token_site(blueprint, site, model)
            if direction.shape != shape:
                raise InputError(
                    f"the steering vector has the shape {list(direction.shape)} at {site}, where {model} has {list(shape)}. "
                    "Make one with this model."
                )
            with np.errstate(over="ignore"):
                shift = direction * np.float32(strength)
            if not np.isfinite(shift).all():
                raise SettingError(f"a strength of {strength:g} is too large for float32 at {site}. Take a smaller one.")
            changes[site] = Change(shift=np.expand_dims(shift, axis) if axis else shift)
        return changes

    def check_weights(self, model: str, digest: str) -> None:
        """Refuse a model with other weights than those that it was made with; a control vector does not say which."""
        if self.weights is not None and self.weights != digest:
            raise InputError(
                f"the steering vector was made with other weights, those of {self.model} ({self.weights[:12]}…, here "
                f"{digest[:12]}…). Make one with {model}."
            )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as a safetensors file."""
        from safetensors.numpy import save

        target = Path(path)
        if target.suffix != ".safetensors":
            raise InputError(f"a steering vector is written as .safetensors, not as {target.name!r}.")
        metadata = {
            "format": FORMAT, "model": self.model, "weights": self.weights or "", "method": self.method,
            "tokens": self.tokens, "pairs": str(self.pairs),
        }  # fmt: skip
        write_bytes(target, save({site: np.ascontiguousarray(d) for site, d in self.directions.items()}, metadata))
        return target


def read_vector(path: Path) -> SteeringVector:
    """The steering vector of a .safetensors file, or the control vector of a .gguf file."""
    if path.suffix == ".gguf":
        model, directions = read_control_vector(path)
        return SteeringVector(directions, model, method="control vector")
    os.close(open_regular(path))  # a pipe or a device is refused before anybody waits for it
    metadata = _metadata(path)
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path}: no steering vector, for its metadata does not say {FORMAT!r}. Choose another file.")
    tensors = read_safetensors(path, "Make it again.")
    directions = {name: tensor.in_memory().to_float32() for name, tensor in tensors.items()}
    for name, direction in directions.items():
        if not direction.size or not np.isfinite(direction).all():
            raise CheckpointError(f"{path}: the direction at {name!r} is not all numbers. Make the vector again.")
    if not directions:
        raise CheckpointError(f"{path}: holds no direction. Make the vector again.")
    pairs = metadata.get("pairs", "")
    return SteeringVector(
        directions, metadata.get("model", ""), metadata.get("weights") or None, metadata.get("method", ""),
        metadata.get("tokens", ""), int(pairs) if pairs.isdecimal() and len(pairs) < 10 else 0,
    )  # fmt: skip


def _metadata(path: Path) -> Mapping[str, str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged or cut short ({reason_of(error)}). Make it again.") from error
    return metadata


def check_strength(strength: Any, name: str) -> float:
    """A strength or a clamped value as a number, refused if it is none."""
    if isinstance(strength, bool) or not isinstance(strength, (int, float)):
        raise SettingError(f"the strength of {name!r} is a number, such as 4.0, not {strength!r}.")
    try:
        value = float(strength)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise SettingError(f"the strength of {name!r} must be finite. Take a smaller one.")
    return value


PREFIX = "direction."


def read_control_vector(path: Path) -> tuple[str, dict[str, Floats]]:
    """The model that it is for, as its hint says ('' where it has none), and its directions by site."""
    checkpoint = GgufCheckpoint(path)
    metadata = checkpoint.metadata
    if (architecture := metadata.get("general.architecture")) != "controlvector":
        raise CheckpointError(f"{path}: its general.architecture is {brief(architecture)}, not 'controlvector'.")
    directions: dict[str, Floats] = {}
    for name, tensor in checkpoint.raw.items():
        block = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or not block.isdecimal() or len(block) > 6 or len(tensor.shape) != 1:
            raise CheckpointError(
                f"{path}: GGUF tensor {brief(name)} of shape {list(tensor.shape)} is no direction of a control vector."
            )
        if int(block) == 0:
            raise CheckpointError(f"{path}: has a direction for block 0, where a control vector has none. Make it again.")
        directions[f"blocks.{int(block)}.residual"] = tensor.in_memory().to_float32()
    if not directions or not all(np.isfinite(direction).all() for direction in directions.values()):
        raise CheckpointError(f"{path}: holds no directions, or some that are not all numbers. Fetch it again.")
    hint = metadata.get("controlvector.model_hint")
    return hint if isinstance(hint, str) else "", directions
