"""Tensors that belong to a model, as safetensors with the digest of its weights: probes, lenses, statistics, shards."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.folder import read_safetensors
from glassformer.ground.errors import CheckpointError, InputError, reason_of
from glassformer.ground.files import atomic_file, write_error
from glassformer.observe.protocols import Floats, ModelLike


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


def save_maps(path: str | os.PathLike[str], maps: Mapping[str, Any], metadata: Mapping[str, str]) -> Path:
    """Linear maps by name, each with a weight and a bias; returns the path."""
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InputError(f"{target} must end in .safetensors.")
    parts = ("weight", "bias")
    save_tensors(target, {f"{name}.{part}": getattr(own, part) for name, own in maps.items() for part in parts}, metadata)
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
    if wrong := [name for name, tensor in tensors.items() if tensor.kind not in ("F32", "F16")]:
        raise InputError(f"{path}: {wrong[0]!r} is of {tensors[wrong[0]].kind}, and not of F32. Train it again.")
    values = {name: tensor.to_float32() for name, tensor in tensors.items()}
    if wrong := [name for name, value in values.items() if not np.isfinite(value).all()]:
        raise InputError(f"{path}: {wrong[0]!r} has values that are no numbers. Train it again.")
    return values, metadata
