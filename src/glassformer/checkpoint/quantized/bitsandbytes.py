"""bitsandbytes: four bits (nf4 and fp4, https://arxiv.org/abs/2305.14314) and eight (https://arxiv.org/abs/2208.07339).

Four bits: `weight` holds two numbers in a byte, the first in its high half; each is an index into `quant_map`, times
`absmax` of its block. `absmax` may itself be packed, as indices into `nested_quant_map` times `nested_absmax` of a larger
block, plus an offset. How large the blocks are stands as JSON in a tensor of bytes. Eight bits: a row of `weight` times its
`SCB` / 127.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glassformer.checkpoint.quantized.parts import FLOATS, Integers, MatrixParts, integers, packed_stems, with_matrices
from glassformer.checkpoint.stored_tensors import Floats, StoredTensor, computed_tensor

STATES = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
ENDINGS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map", *STATES)
MAX_SIZE = 1 << 40  # of a dimension or a block


class QuantState(NamedTuple):
    shape: tuple[int, ...]
    block: int  # numbers that share an absmax
    nested_block: int  # absmaxes that share a nested one
    offset: float


def expand(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], path: Path) -> dict[str, StoredTensor]:
    four_bits = {
        stem: partial(_four_bits, state_name=state, numbers=tensors.get(stem))
        for state in STATES
        for stem in packed_stems(tensors, state)  # ….weight
    }
    expanded = with_matrices(tensors, path, four_bits, ENDINGS)
    eight_bits = dict.fromkeys(packed_stems(expanded, "SCB"), _eight_bits)
    return with_matrices(expanded, path, eight_bits, ("SCB", "weight_format"))


def _eight_bits(parts: MatrixParts) -> StoredTensor:
    numbers, scales = parts.need("weight", ("I8",), 2), parts.need("SCB", FLOATS)
    if scales.elements != numbers.shape[0]:
        raise parts.error(f"SCB has {scales.elements} numbers for {numbers.shape[0]} rows")

    def unpack() -> Floats:
        return integers(numbers).astype(np.float32) * (scales.to_float32().reshape(-1, 1) / np.float32(127))

    return computed_tensor(f"{parts.stem}.weight", numbers.shape, unpack, [numbers, scales], "bitsandbytes int8")


def _four_bits(parts: MatrixParts, state_name: str, numbers: StoredTensor | None) -> StoredTensor:
    state_tensor = parts.need(state_name, ("U8",), 1)
    state = _state(parts, state_tensor)
    codebook, absmax = parts.need("quant_map", FLOATS, 1), parts.need("absmax", (*FLOATS, "U8"), 1)
    elements = math.prod(state.shape)
    blocks = -(-elements // state.block)
    if numbers is None or numbers.kind != "U8" or numbers.elements != (elements + 1) // 2:
        raise parts.error(f"its bytes do not make {elements} numbers of four bits")
    parts.expect("quant_map", codebook, (16,))
    parts.expect("absmax", absmax, (blocks,))
    sources = [numbers, codebook, absmax, state_tensor]
    nested: tuple[StoredTensor, StoredTensor] | None = None
    if absmax.kind == "U8":
        nested = parts.need("nested_quant_map", FLOATS, 1), parts.need("nested_absmax", FLOATS, 1)
        parts.expect("nested_quant_map", nested[0], (256,))
        parts.expect("nested_absmax", nested[1], (-(-blocks // state.nested_block),))
        sources += nested
    compute = partial(_unpack, state, numbers, codebook, absmax, nested)
    return computed_tensor(parts.stem, state.shape, compute, sources, f"bitsandbytes {state}")


def _state(parts: MatrixParts, tensor: StoredTensor) -> QuantState:
    try:
        raw = json.loads(bytes(tensor.bytes))
        nested = {"nested_blocksize": 1, "nested_offset": 0.0} | raw
        state = QuantState(tuple(raw["shape"]), raw["blocksize"], nested["nested_blocksize"], nested["nested_offset"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise parts.error(f"its quant_state is not readable ({error})") from error
    sizes = (*state.shape, state.block, state.nested_block)
    if not state.shape or not all(type(size) is int and 0 < size < MAX_SIZE for size in sizes):
        raise parts.error(f"its quant_state has the sizes {sizes}")
    if not isinstance(state.offset, int | float) or isinstance(state.offset, bool):
        raise parts.error("the nested_offset of its quant_state is no number")
    return state._replace(offset=float(state.offset))


def _unpack(
    state: QuantState, numbers: StoredTensor, codebook: StoredTensor, absmax: StoredTensor,
    nested: tuple[StoredTensor, StoredTensor] | None,
) -> Floats:  # fmt: skip
    pairs = integers(numbers).reshape(-1)
    indices = np.stack((pairs >> 4, pairs & 15), -1).reshape(-1)[: math.prod(state.shape)]
    scales = absmax.to_float32() if nested is None else _nested(integers(absmax), nested, state)
    values = codebook.to_float32()[indices]
    whole = values.size // state.block * state.block
    values[:whole].reshape(-1, state.block)[...] *= scales[: whole // state.block, None]
    values[whole:] *= scales[-1]
    return values.reshape(state.shape)


def _nested(indices: Integers, nested: tuple[StoredTensor, StoredTensor], state: QuantState) -> Floats:
    codebook, absmax = (tensor.to_float32() for tensor in nested)
    blocks = np.arange(indices.size) // state.nested_block
    return codebook[indices] * absmax[blocks] + np.float32(state.offset)
