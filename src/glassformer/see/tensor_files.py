"""Tensors that belong to a model, as safetensors with the digest of its weights: probes, lenses, statistics, shards.

A job is resumed, and activations, probes and lenses that were kept are used, only where the model is still the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.folder import pack_matrices, read_safetensors, unpack_matrices
from glassformer.ground.changes import Change, ComputedChange, change_data, parts_of
from glassformer.ground.errors import CheckpointError, InputError, SettingError, reason_of
from glassformer.ground.files import atomic_file, write_error
from glassformer.see.protocols import ModelLike
from glassformer.see.view import Floats

DIGESTS = {  # what changed, where the value is a digest that tells a person nothing
    "input": "the input file", "weights": "the model's weights", "config": "the model's config",
    "tokenizer": "the tokenizer", "model settings": "the model's own settings",
}  # fmt: skip


def model_fingerprint(model: ModelLike) -> dict[str, Any]:
    """A model by what it computes, wherever it lies. `executor` too: another one rounds differently."""
    fingerprint: dict[str, Any] = {
        "weights": model.weights_digest,
        "config": json_digest(model.config.to_dict()),
        "tokenizer": _tokenizer_digest(model),
        "model settings": json_digest(model.settings.to_dict()),
        "changes": {site: _change_digest(site, change) for site, change in model.changes.items()},
        "version": str(sys.modules["glassformer"].__version__),
    }
    if model.writes:
        about = model.executor.describe()
        fingerprint |= {"executor": about.name, "dtype": about.dtype, "executor options": dict(about.options)}
    return fingerprint


def differences(recorded: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """What is not as it was, in words."""
    changes = []
    for name in dict.fromkeys((*recorded, *current)):
        then, now = recorded.get(name), current.get(name)
        if then == now:
            continue
        if isinstance(then, Mapping) and isinstance(now, Mapping):
            changes += differences(then, now)
        elif name in DIGESTS:
            changes.append(f"{DIGESTS[name]} is another")
        else:
            changes.append(f"{name} was {_shown(then)} and is {_shown(now)}")
    return changes


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a file holds them; what it cannot hold, by its type."""
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=_name_of))
    return plain


def json_digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=_name_of).encode()).hexdigest()


def _name_of(value: Any) -> str:
    return str(getattr(value, "name", None) or f"<{type(value).__name__}>")


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def _tokenizer_digest(model: ModelLike) -> str:
    tokenizer = model.tokenizer
    return json_digest([tokenizer.backend.to_str(), tokenizer.chat_template])


def _change_digest(site: str, change: Change) -> str:
    if any(isinstance(part, ComputedChange) for part in parts_of(change)):
        raise SettingError(f"what can be resumed has no function at {site}: another one would not be noticed.")
    return json_digest(change_data(change))


def save_tensors(path: Path, arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Arrays as a safetensors file, written whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        with atomic_file(path) as part:
            save_file(whole, os.fspath(part), None if metadata is None else dict(metadata))
    except SafetensorError as error:  # its errors of writing are no OSError
        raise write_error(path, str(error)) from error
    except ValueError as error:  # a name that no file can have
        raise InputError(f"{str(path)!r} cannot be written: {reason_of(error)}.") from error


def save_maps(
    path: str | os.PathLike[str], maps: Mapping[str, Mapping[str, Floats]], metadata: Mapping[str, str], *,
    packed: bool = False,
) -> Path:  # fmt: skip
    """Linear maps by name, each with a weight, a bias and perhaps more; returns the path. `packed`: matrices in 8 bits."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InputError(f"{target} must end in .safetensors.")
    arrays = {f"{name}.{part}": array for name, parts in maps.items() for part, array in parts.items()}
    save_tensors(target, pack_matrices(arrays) if packed else arrays, metadata)
    return target


def model_metadata(model: ModelLike, kind: str, **more: str) -> dict[str, str]:
    """What a file of a model's says of itself."""
    return {"format": kind, "model": model.name, "weights": model.weights_digest, **more}


def load_tensors(path: Path, kind: str, model: ModelLike) -> tuple[dict[str, Floats], dict[str, str]]:
    """The tensors in float32, and the metadata, of a file of this kind that was made with this model."""
    from safetensors import SafetensorError, safe_open

    what = kind.removeprefix("glassformer.").partition("/")[0].replace("-", " ")
    try:
        tensors = read_safetensors(path, "Check the path, or train one.")
        with safe_open(path, framework="np") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except CheckpointError as error:  # which names the file
        raise InputError(str(error)) from error
    except (OSError, SafetensorError, UnicodeEncodeError) as error:
        raise InputError(f"{str(path)!r}: cannot be read as a {what} file ({reason_of(error)}).") from error
    if metadata.get("format") != kind:
        raise InputError(f"{path}: not a {what} file of this version. Train one.")
    if metadata.get("weights") != model.weights_digest:
        raise InputError(
            f"{path}: was trained with other weights ({metadata.get('model')}) than {model.name}'s. "
            "Train one with this model."
        )
    if wrong := [name for name, tensor in tensors.items() if tensor.kind not in ("F32", "F16", "I8")]:
        raise InputError(f"{path}: {wrong[0]!r} is of {tensors[wrong[0]].kind}, and not of F32. Train it again.")
    values = unpack_matrices(tensors, path)
    if wrong := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise InputError(f"{path}: {wrong[0]!r} has values that are no numbers. Train it again.")
    return values, metadata
