"""Small checkpoints, well made by the libraries of the formats and ill made by hand; and what all of them must pass."""

from __future__ import annotations

import contextlib
import json
import struct
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from hypothesis import strategies as st
from safetensors.numpy import save_file

from glassformer.ground.errors import CheckpointError, GlassError
from glassformer.model_files import open_model

Packed = tuple[np.ndarray, GGMLQuantizationType]  # raw bytes, (rows, bytes per row), and their kind
Typed = tuple[Any, GGUFValueType] | tuple[Any, GGUFValueType, GGUFValueType]  # value, type, and an array's item type

VOCABULARY, HIDDEN, HEADS, GROUPS, INNER = 8, 16, 4, 2, 24
MODEST = 32 << 20  # bytes that opening a file of a few kilobytes may take, whatever it claims


# GGUF, well made ------------------------------------------------------------------------------------------------


def sizes(architecture: str) -> dict[str, Typed]:
    whole, real = GGUFValueType.UINT32, GGUFValueType.FLOAT32
    return {
        f"{architecture}.context_length": (64, whole),
        f"{architecture}.embedding_length": (HIDDEN, whole),
        f"{architecture}.block_count": (1, whole),
        f"{architecture}.feed_forward_length": (INNER, whole),
        f"{architecture}.attention.head_count": (HEADS, whole),
        f"{architecture}.attention.head_count_kv": (GROUPS, whole),
        f"{architecture}.attention.key_length": (HIDDEN // HEADS, whole),
        f"{architecture}.attention.layer_norm_rms_epsilon": (1e-5, real),
        f"{architecture}.rope.freq_base": (5000.0, real),
        "tokenizer.ggml.bos_token_id": (1, whole),
        "tokenizer.ggml.eos_token_id": (2, whole),
        "tokenizer.ggml.padding_token_id": (0, whole),
    }


def weights(architecture: str) -> dict[str, np.ndarray]:
    """One block's tensors under GGUF's names, each with values of its own."""
    head = HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, HIDDEN),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
        "blk.0.attn_k.weight": (GROUPS * head, HIDDEN),
        "blk.0.attn_v.weight": (GROUPS * head, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INNER, HIDDEN),
        "blk.0.ffn_up.weight": (INNER, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INNER),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCABULARY, HIDDEN),
    }
    if architecture == "qwen3":
        shapes |= {"blk.0.attn_q_norm.weight": (head,), "blk.0.attn_k_norm.weight": (head,)}
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    metadata: Mapping[str, Typed] | None = None,
    tensors: Mapping[str, np.ndarray | Packed] | None = None,
    alignment: int | None = None,
) -> Path:
    """A GGUF file by the gguf package's own writer; by default a whole tiny model."""
    writer = GGUFWriter(path, architecture)
    if alignment:
        writer.add_custom_alignment(alignment)
    for key, typed in (sizes(architecture) if metadata is None else metadata).items():
        writer.add_key_value(key, *typed)
    for name, tensor in (weights(architecture) if tensors is None else tensors).items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[0], raw_dtype=tensor[1])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# GGUF, by hand --------------------------------------------------------------------------------------------------


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, code: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", code) + value


def entry(name: str, shape: tuple[int, ...] = (4,), code: int = 0, offset: int = 0) -> bytes:
    """A row of the tensor table; the shape is in GGUF's order, fastest first."""
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


def header(
    *pairs: bytes,
    tensors: tuple[bytes, ...] = (),
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    counted = counts or (len(tensors), len(pairs))
    return magic + struct.pack("<IQQ", version, *counted) + b"".join(pairs) + b"".join(tensors)


# Folders --------------------------------------------------------------------------------------------------------

CONFIG = {"model_type": "llama", "vocab_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}


def write_folder(folder: Path, shards: Mapping[str, Mapping[str, np.ndarray]], config: object = CONFIG) -> Path:
    """A checkpoint folder; one shard named model.safetensors needs no index, more get theirs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name, tensors in shards.items():
        save_file(dict(tensors), folder / name)
    if set(shards) - {"model.safetensors"}:
        where = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def safetensors_bytes(table: object, data: bytes = b"") -> bytes:
    """A safetensors file by hand; the table as an object, or as the JSON text itself."""
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return struct.pack("<Q", len(text)) + text + data


# What every file must pass --------------------------------------------------------------------------------------


def open_all(path: Path) -> None:
    """Everything that opening a model reads, down to each tensor's values."""
    opened = open_model(path)
    opened.config  # noqa: B018
    opened.settings  # noqa: B018
    for stored in opened.tensors.values():
        stored.to_float32()


def refused(act: Callable[[], object], *words: object, kind: type[GlassError] = CheckpointError) -> GlassError:
    """The error that an act must raise, saying all the words: the file, the field, the fix."""
    with pytest.raises(kind) as caught:
        act()
    unsaid = [str(word) for word in words if str(word) not in str(caught.value)]
    assert not unsaid, f"{unsaid} not in: {caught.value}"
    return caught.value


@contextlib.contextmanager
def modestly() -> Iterator[None]:
    """Only errors that we raise on purpose, and no memory for what a file merely claims."""
    tracemalloc.start()
    try:
        with contextlib.suppress(GlassError):
            yield
        assert tracemalloc.get_traced_memory()[1] < MODEST
    finally:
        tracemalloc.stop()


LIMITS = [0, 1, 2, 9, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
PATCH = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(LIMITS).map(lambda n: struct.pack("<Q", n)),
    st.sampled_from([n for n in LIMITS if n < 2**32]).map(lambda n: struct.pack("<I", n)),
)


def damaged(whole: bytes, head: int) -> st.SearchStrategy[bytes]:
    """A file with some bytes overwritten, mostly in its head of so many bytes, and perhaps cut short."""
    places = st.one_of(st.integers(0, head - 1), st.integers(0, head - 1), st.integers(0, len(whole) - 1))

    def overwrite(patches: list[tuple[int, bytes]], cut: int) -> bytes:
        changed = bytearray(whole)
        for at, patch in patches:
            changed[at : at + len(patch)] = patch[: len(changed) - at]
        return bytes(changed[:cut])

    cuts = st.one_of(st.just(len(whole)), st.just(len(whole)), st.integers(1, len(whole)))
    return st.builds(overwrite, st.lists(st.tuples(places, PATCH), max_size=4), cuts)


def replace(path: Path, data: bytes) -> Path:
    """Write a new file under the name: an old mapping of it must never see its bytes go away."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path
