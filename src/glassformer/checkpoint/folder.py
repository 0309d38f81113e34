"""A folder in the layout of the hub: config.json, generation_config.json, and one or many files of weights.

The safetensors library opens each file first and thereby checks its header, its table and its length; what is left
to do here is to note where each tensor's bytes lie, so that they can be mapped without torch. Only where there are no
safetensors are the older pickles read, by `torch_file`.

What comes with the package, dictionaries of features and tuned lenses, has its matrices in 8 bits, a quarter of float32's
space: whole numbers of a byte, and beside a matrix NAME a scale for each row or column, in NAME.scale.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.checkpoint.gguf_kinds import FLOAT8_KINDS
from glassformer.checkpoint.quantized import expand_quantized, quantization_method
from glassformer.checkpoint.stored_tensors import PLAIN_KINDS, MappedFile, StoredTensor, check_region
from glassformer.checkpoint.torch_file import TORCH_SUFFIXES, read_torch_file
from glassformer.ground.errors import CheckpointError, reason_of
from glassformer.ground.files import FETCH_AGAIN, read_regular

WEIGHTS = (  # the best first
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
Floats: TypeAlias = npt.NDArray[np.float32]
SCALE = ".scale"
MOST = 127  # the largest number of a byte
TINY = np.finfo(np.float32).tiny  # the smallest scale: rows of zeros have it


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    if not os.path.lexists(path):
        raise CheckpointError(f"{path}: the file is missing. A checkpoint folder needs config.json beside its weights.")
    try:
        value = json.loads(read_regular(path).decode("utf-8"))
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({reason_of(error)}). Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__} where an object belongs. Fetch it again.")
    return value


class FolderCheckpoint:
    """A checkpoint folder; of its weights the best file is read, or the one that is named."""

    def __init__(self, path: Path, weights: str | None = None) -> None:
        self.path = path
        self._wanted = WEIGHTS if weights is None else (weights,)

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """As in the file; of packed weights that are read as float32, as it is of these."""
        if self.quantization is None:
            return self._raw_config
        plain = {key: value for key, value in self._raw_config.items() if key not in ("quantization_config", "torch_dtype")}
        return {**plain, "dtype": "float32"}

    @cached_property
    def _raw_config(self) -> dict[str, Any]:
        return read_json(self.path / "config.json")

    @cached_property
    def quantization(self) -> Mapping[str, Any] | None:
        """How another library has packed the weights, if it is a way that can be read; None if they are plain."""
        if not (self.path / "config.json").exists():
            return None
        config = self._raw_config.get("quantization_config")
        older = self.path / "quantize_config.json"  # AutoGPTQ's own, before it was a field of the config
        if config is None and older.exists():
            config = {"quant_method": "gptq", **read_json(older)}
        return config if quantization_method(config) is not None else None

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        path = self.path / "generation_config.json"
        return read_json(path) if path.exists() else {}

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return expand_quantized(self._stored, self.quantization, self.path)

    @property
    def _stored(self) -> Mapping[str, StoredTensor]:
        """The tensors that the files hold."""
        if self._weights is None:
            raise CheckpointError(
                f"{self.path}: holds no model.safetensors and no model.safetensors.index.json, nor a pytorch_model.bin. "
                "Fetch the weights, or convert them to safetensors."
            )
        if self._weights.suffix != ".json":
            return read_weights(self._weights)
        where = self._weight_map
        shards = {name: read_weights(self._inside(name)) for name in sorted(set(where.values()))}
        for tensor, name in where.items():
            if tensor not in shards[name]:
                raise CheckpointError(f"{self._weights}: tensor {tensor!r} is not in {name!r} as listed. Fetch both again.")
        return {tensor: shards[name][tensor] for tensor, name in where.items()}

    @property
    def complete(self) -> bool:
        """Whether the weights are all here. A download that was broken off can leave an index without its shards."""
        if self._weights is None or self._weights.suffix != ".json":
            return self._weights is not None
        return all(self._inside(name).exists() for name in set(self._weight_map.values()))

    @cached_property
    def _weights(self) -> Path | None:
        """The file to begin with: all the weights, or the index of their shards."""
        return next((path for name in self._wanted if os.path.lexists(path := self.path / name)), None)

    @cached_property
    def _weight_map(self) -> dict[str, str]:
        """Which shard holds each tensor, as the index says."""
        assert self._weights is not None
        where = read_json(self._weights).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(name, str) for name in where.values()):
            raise CheckpointError(f"{self._weights}: 'weight_map' must map tensor names to file names. Fetch it again.")
        return where

    def _inside(self, name: str) -> Path:
        """A shard's path, refused if it would leave the folder. (Lexically: the hub's cache is made of links.)"""
        parts = PurePosixPath(name.replace("\\", "/"))
        if parts.is_absolute() or ".." in parts.parts or ":" in name or not name.isprintable():
            raise CheckpointError(
                f"{self._weights}: shard {name!r} is not a file inside the checkpoint's folder; it is not opened. "
                "Fetch the index again."
            )
        return self.path / parts


def read_weights(path: Path) -> dict[str, StoredTensor]:
    """Where each tensor of one file lies, by the file's ending."""
    return read_torch_file(path).tensors if path.suffix in TORCH_SUFFIXES else read_safetensors(path)


def read_safetensors(path: Path, advice: str = "") -> dict[str, StoredTensor]:
    """Where each tensor of one safetensors file lies; `advice`: what to do instead of fetching it again."""
    from safetensors import SafetensorError, safe_open

    file = MappedFile(path, advice or FETCH_AGAIN)
    advice = advice or "Fetch it again."
    try:
        with safe_open(path, framework="np"):
            pass
        length = int.from_bytes(file.buffer[:8], "little")
        header = json.loads(file.buffer[8 : 8 + length])
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: damaged or cut short ({reason_of(error)}). {advice}") from error
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        match entry:  # the library reads some other spellings, which nobody writes
            case {"dtype": str(kind), "shape": [*shape], "data_offsets": [start, end]}:
                pass
            case _:
                raise CheckpointError(f"{path}: the header's entry for tensor {name!r} is unusable. {advice}")
        if kind not in (known := (*PLAIN_KINDS, *FLOAT8_KINDS)):
            raise CheckpointError(
                f"{path}: tensor {name!r} is of dtype {kind}, which is not supported. Known: {', '.join(known)}."
            )
        check_region(file, name, 8 + length + start, end - start)
        tensors[name] = StoredTensor(name, kind, tuple(shape), file, 8 + length + start, end - start)
    return tensors


def pack_matrices(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays, of which matrices have 8 bits: scaled by rows or by columns, whichever loses less."""
    packed: dict[str, npt.NDArray[Any]] = {}
    for name, array in arrays.items():
        if array.ndim != 2 or not array.size:
            packed[name] = array
            continue
        largest = (np.abs(array).max(axis=axis, keepdims=True).astype(np.float32) for axis in (0, 1))
        scales = [np.maximum(each / MOST, TINY) for each in largest]
        pairs = [(np.rint(array / scale).astype(np.int8), scale) for scale in scales]
        packed[name], packed[name + SCALE] = min(pairs, key=lambda pair: float(((pair[0] * pair[1] - array) ** 2).sum()))
    return packed


def unpack_matrices(tensors: Mapping[str, StoredTensor], where: Path) -> dict[str, Floats]:
    """A file's tensors in float32, each multiplied by its scales if it has some; its bytes are not kept."""
    values = {}
    for name, stored in tensors.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors:
            continue
        tensor, scale = stored.in_memory(), tensors.get(name + SCALE)
        if scale is None:
            values[name] = tensor.to_float32()
            continue
        fits = len(tensor.shape) == 2 and scale.shape in ((tensor.shape[0], 1), (1, tensor.shape[1]))
        if tensor.kind != "I8" or not fits:
            found = f"{tensor.kind} of the shape {list(tensor.shape)} with scales of {list(scale.shape)}"
            raise CheckpointError(f"{where}: {name} is {found}, which is no matrix in 8 bits. Fetch it again.")
        values[name] = tensor.bytes.view(np.int8).reshape(tensor.shape) * scale.in_memory().to_float32()
    return values
