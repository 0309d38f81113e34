"""A GGUF file's metadata and tensors in the families' own words, by the table of its architecture; and the way back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.checkpoint.gguf_architectures import ArchitectureTable, table_of
from glassformer.checkpoint.gguf_config_fields import REQUIRED, Raw, shortest_float
from glassformer.checkpoint.gguf_tensor_names import ENDLESS, T5_PLAIN
from glassformer.checkpoint.stored_tensors import InterleavedPairs, Layout, PartAfterPart, StoredTensor
from glassformer.ground.errors import CheckpointError, did_you_mean


def config_from_gguf(metadata: Mapping[str, Any], raw: Mapping[str, StoredTensor], path: Path) -> dict[str, Any]:
    """The configuration that `config.json` would hold."""
    architecture, table = table_of(metadata, path)
    fields = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    for key in REQUIRED:
        if fields.get(key) is None:
            raise CheckpointError(f"{path}: GGUF field '{architecture}.{key}' is missing. Fetch the file again.")
    config: dict[str, Any] = {"model_type": table.model_type}
    for key, name in table.sizes.items():
        if (value := fields.get(key)) is not None:
            config[name] = shortest_float(value)
    embedding = raw.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{path}: GGUF tensor 'token_embd.weight' is missing. Fetch the file again.")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in raw or raw["output.weight"].same_bytes(embedding)
    for name in ("bos", "eos", "padding"):
        if (token := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name.removesuffix('ding')}_token_id"] = token
    return config | table.extra(fields, raw)


def tensors_from_gguf(
    metadata: Mapping[str, Any], config: Mapping[str, Any], raw: Raw, path: Path
) -> dict[str, StoredTensor]:
    """The tensors under the family's names, with the layout that leads from the file's to the family's order."""
    _, table = table_of(metadata, path)
    tensors: dict[str, StoredTensor] = {}
    for name, stored in raw.items():
        if name in table.ignored:
            continue
        family_name, layout = family_name_and_layout(metadata, config, name, stored.shape, path)
        shape = stored.shape if layout is None else layout.stored_shape(stored.shape)  # each layout is its own inverse there
        tensor = replace(stored, name=family_name, shape=shape, layout=layout)
        tensors |= unstacked(tensor) if "*" in family_name else {family_name: tensor}
    return tensors


def family_name_and_layout(
    metadata: Mapping[str, Any], config: Mapping[str, Any], name: str, shape: tuple[int, ...], path: Path
) -> tuple[str, Layout | None]:
    """The family's name for a tensor of GGUF's name and shape, and how it lies in the file."""
    architecture, table = table_of(metadata, path)
    names = T5_PLAIN if config.get("feed_forward_proj") == "relu" else table.names
    stem, _, ending = name.rpartition(".")
    number = re.search(r"(?:^|\.)blk\.(\d+)\.", stem)
    pattern = stem.replace(f"blk.{number.group(1)}.", "blk.{}.") if number else stem
    if pattern not in names:
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has no place in a {architecture} model."
            f"{did_you_mean(pattern, names)} This variant is not supported; choose another file."
        )
    family_name = names[pattern].format(number.group(1) if number else "")
    family_name += "" if family_name.endswith(ENDLESS) else f".{ending}"
    return family_name, _layout(table, name, shape, config, path)


def unstacked(stacked: StoredTensor) -> dict[str, StoredTensor]:
    """What one tensor holds for several experts, by the name of each; * stands for the expert's number."""
    count = max(stacked.shape[0], 1)
    size = stacked.size // count
    return {
        (name := stacked.name.replace("*", str(number))): replace(
            stacked, name=name, shape=stacked.shape[1:], offset=stacked.offset + number * size, size=size
        )
        for number in range(stacked.shape[0])
    }


def gguf_name_and_layout(
    table: ArchitectureTable, config: Mapping[str, Any], name: str, shape: tuple[int, ...]
) -> tuple[str, Layout | None]:
    """GGUF's name and layout for a tensor of the family: the inverse of `tensors_from_gguf`. Experts have one name."""
    name = f"{name}.weight" if name.endswith(ENDLESS) else name
    stem, _, ending = re.sub(r"\.experts\.\d+\.", ".experts.*.", name).rpartition(".")
    number = re.search(r"\.(\d+)\.", stem)
    pattern = stem.replace(f".{number.group(1)}.", ".{}.", 1) if number else stem
    gguf_name = next(gguf_pattern for gguf_pattern, family_pattern in table.names.items() if family_pattern == pattern)
    gguf_name = f"{gguf_name.format(number.group(1) if number else '')}.{ending}"
    return gguf_name, _layout(table, gguf_name, shape, config, Path(name))


def _layout(
    table: ArchitectureTable, name: str, shape: tuple[int, ...], config: Mapping[str, Any], path: Path
) -> Layout | None:
    """How a tensor of GGUF's name lies, where that is not how the family has it."""
    queries = config.get("num_attention_heads")
    if table.part_after_part and re.fullmatch(r"blk\.\d+\.attn_qkv\.\w+", name):
        return PartAfterPart(_checked_heads(queries, 3, name, shape[0], path))
    projection = re.fullmatch(r"blk\.\d+\.attn_([qk])\.\w+", name) if table.interleaved else None
    if projection is None:
        return next((layout for pattern, layout in table.layouts.items() if re.fullmatch(pattern, name)), None)
    heads = queries if projection.group(1) == "q" else config.get("num_key_value_heads") or queries
    return InterleavedPairs(_checked_heads(heads, 2, name, shape[0], path))


def _checked_heads(heads: Any, parts: int, name: str, rows: int, path: Path) -> int:
    """How many heads a tensor's rows make, refused where they make none that fall into so many parts."""
    if type(heads) is not int or heads < 1 or rows % (parts * heads):
        what = "pairs in" if parts == 2 else "queries, keys and values of"
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has {rows} rows, which do not make {what} {heads} heads "
            "(fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."
        )
    return heads
