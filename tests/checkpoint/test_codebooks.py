"""Kinds with tables: the same numbers as the gguf package's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from glassformer.checkpoint.codebooks import CODEBOOK_KINDS
from glassformer.checkpoint.gguf_kinds import block_size, dequantize


@pytest.mark.parametrize("kind", CODEBOOK_KINDS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # scales of infinity
def test_any_bytes_mean_the_same_numbers(kind: str) -> None:
    elements, size = block_size(kind)
    raw = np.random.default_rng(1).integers(0, 256, (64, 8 * size), np.uint8)
    values = dequantize(raw.reshape(-1), kind, (64, 8 * elements), "x")
    expected = gguf_dequantize(raw, GGMLQuantizationType[kind])
    assert values.dtype == np.float32
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", CODEBOOK_KINDS)
def test_shapes(kind: str) -> None:
    elements, size = block_size(kind)
    for shape in ((0, elements), (1, elements), (3, 1, 2 * elements)):
        count = int(np.prod(shape)) // elements
        assert dequantize(np.zeros(count * size, np.uint8), kind, shape, "x").shape == shape
