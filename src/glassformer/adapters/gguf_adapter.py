"""Adapters in GGUF, as llama.cpp's converter writes them: `blk.0.attn_q.weight.lora_a` and `.lora_b`.

The rows of an update are ordered as those of the matrix that it changes, so the base's layout orders its `lora_b`. Only an
embedding's `lora_a` is stored the other way round, (tokens, rank).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.adapters.application import Adapter, MatrixUpdate
from glassformer.checkpoint import StoredTensor
from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.checkpoint.gguf_names import family_name_and_layout, model_type_of
from glassformer.checkpoint.stored_tensors import InterleavedPairs, Transposed
from glassformer.ground.errors import CheckpointError
from glassformer.ground.typecheck import brief

EMBEDDING = "token_embd.weight"
NORM = "_norm.weight"  # of a norm as a whole, which some tools put beside the updates


def read_file(path: Path, base_config: Mapping[str, Any]) -> Adapter:
    """The adapter in a file."""
    checkpoint = GgufCheckpoint(path)
    metadata = checkpoint.metadata
    if (kind := metadata.get("general.type")) != "adapter":
        raise CheckpointError(f"{path}: its general.type is {brief(kind)}, not 'adapter'. Give it as the model, with -m.")
    if (kind := metadata.get("adapter.type")) != "lora":
        raise CheckpointError(f"{path}: adapters of the type {brief(kind)} are not supported, only 'lora'.")
    alpha = metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{path}: GGUF field 'adapter.lora.alpha' is {brief(alpha)}, not a number. Fetch it again.")
    if (family := model_type_of(metadata, path)) != (base := base_config.get("model_type")):
        raise CheckpointError(f"{path}: an adapter for a {family} model, and the base is a {base} model. Give its own base.")
    halves: dict[str, dict[str, StoredTensor]] = {}
    norms: dict[str, StoredTensor] = {}
    for name, tensor in checkpoint.raw.items():
        matrix, _, half = name.rpartition(".")
        if name.endswith(NORM):
            family_name, layout = family_name_and_layout(metadata, base_config, name, tensor.shape, path)
            norms[family_name] = replace(tensor, name=family_name, layout=layout)
            continue
        if half not in ("lora_a", "lora_b") or not matrix.endswith(".weight"):
            raise CheckpointError(f"{path}: GGUF tensor {name!r} is no part of an adapter. Choose another file.")
        halves.setdefault(matrix, {})[half] = tensor
    updates = {}
    for matrix, tensors in halves.items():
        name, update = _update(path, metadata, base_config, matrix, tensors, float(alpha))
        updates[name.removesuffix(".weight")] = update
    if not updates:
        raise CheckpointError(f"{path}: holds no lora_a and lora_b. Fetch it again.")
    return Adapter(path, updates, norms)


def _update(
    path: Path, metadata: Mapping[str, Any], base_config: Mapping[str, Any], matrix: str,
    tensors: Mapping[str, StoredTensor], alpha: float,
) -> tuple[str, MatrixUpdate]:  # fmt: skip
    """The family's name of a matrix, and its update."""
    for half in ("lora_a", "lora_b"):
        if half not in tensors:
            raise CheckpointError(f"{path}: lacks GGUF tensor '{matrix}.{half}'. Fetch it again.")
        if len(tensors[half].shape) != 2:
            raise CheckpointError(f"{path}: GGUF tensor '{matrix}.{half}' has shape {tensors[half].shape}. Fetch it again.")
    a, b = tensors["lora_a"], tensors["lora_b"]
    if matrix == EMBEDDING:
        a = replace(a, shape=a.shape[::-1], layout=Transposed())
    if a.shape[0] != b.shape[1]:
        raise CheckpointError(
            f"{path}: GGUF tensors '{matrix}.lora_a' and '.lora_b' have the shapes {a.shape} and {b.shape}, which make no "
            "product. Fetch it again."
        )
    name, layout = family_name_and_layout(metadata, base_config, matrix, (b.shape[0], a.shape[1]), path)
    if isinstance(layout, InterleavedPairs):
        b = replace(b, layout=layout)
    return name, MatrixUpdate(a, b, alpha / a.shape[0] if alpha else 1.0)
