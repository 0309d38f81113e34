"""GGUF files of tiny models whose matrices are packed, wide enough for every kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf import GGUFValueType as Value
from gguf.quants import quantize

from glassformer.checkpoint.gguf_kinds import block_size
from glassformer.checkpoint.quantization import BITS, quantize_rows
from tests.checkpoint.files import Packed, Typed, write_gguf
from tests.engine.executors import Subject

VOCABULARY, HIDDEN, INNER, HEADS, GROUPS, CONTEXT = 83, 256, 512, 4, 2, 512
KEPT = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K")  # kinds that have a layout
RARE = ("Q5_1", "IQ4_NL", "Q2_K", "Q3_K")  # these become floats
SCALES: Mapping[str, tuple[int, ...]] = {"Q2_K": (80, 82), "Q3_K": (108,)}  # where a block has half floats


def metadata(hidden: int = HIDDEN, **more: Typed) -> dict[str, Typed]:
    sizes = {
        "context_length": CONTEXT, "embedding_length": hidden, "block_count": 2, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.key_length": hidden // HEADS,
    }  # fmt: skip
    numbers = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0}
    return {
        **{f"llama.{key}": (value, Value.UINT32) for key, value in sizes.items()},
        **{f"llama.{key}": (value, Value.FLOAT32) for key, value in numbers.items()},
        **more,
    }


def tensors(kind: str, hidden: int = HIDDEN, seed: int = 3) -> dict[str, np.ndarray | Packed]:
    """A Llama of two blocks, each matrix in a kind."""
    draw, narrow = np.random.default_rng(seed), GROUPS * hidden // HEADS
    shapes = {"token_embd": (VOCABULARY, hidden), "output": (VOCABULARY, hidden)}
    for number in range(2):
        each = {
            "attn_q": (hidden, hidden), "attn_k": (narrow, hidden), "attn_v": (narrow, hidden),
            "attn_output": (hidden, hidden), "ffn_gate": (INNER, hidden), "ffn_up": (INNER, hidden),
            "ffn_down": (hidden, INNER),
        }  # fmt: skip
        shapes |= {f"blk.{number}.{name}": shape for name, shape in each.items()}
    norms = ["output_norm", *(f"blk.{number}.{name}_norm" for number in range(2) for name in ("attn", "ffn"))]
    found: dict[str, np.ndarray | Packed] = {
        f"{name}.weight": (1 + 0.1 * draw.standard_normal(hidden)).astype(np.float32) for name in norms
    }
    for name, shape in shapes.items():
        values = (draw.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
        found[f"{name}.weight"] = (as_kind(values, kind, draw), GGMLQuantizationType[kind])
    return found


def as_kind(values: np.ndarray, kind: str, draw: np.random.Generator) -> np.ndarray:
    """Rows packed; in a kind that nothing here can write, whatever numbers its bytes happen to mean."""
    if kind in BITS:
        return quantize_rows(values, kind)
    if kind == "Q5_1":
        packed: np.ndarray = quantize(values, GGMLQuantizationType.Q5_1)
        return packed
    elements, size = block_size(kind)
    blocks = draw.integers(0, 256, (values.size // elements, size), np.uint8)
    for at in SCALES.get(kind, (0,)):
        scale = np.float16(0.1 / np.sqrt(values.shape[1]) / (10 if elements == 256 else 100))
        blocks[:, at : at + 2] = scale.reshape(1).view(np.uint8)
    return blocks.reshape(len(values), -1)


def packed_model(path: Path, kind: str, hidden: int = HIDDEN) -> Subject:
    return Subject(write_gguf(path, "llama", metadata(hidden), tensors(kind, hidden)))
