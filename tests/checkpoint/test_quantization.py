"""Float32 to packed bytes and back. What reads the bytes is the gguf package's own `dequantize`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from glassformer.checkpoint import quantization
from glassformer.checkpoint.gguf_kinds import block_size, dequantize, kind_name
from glassformer.checkpoint.quantization import BITS, check_kind, quantize_rows, quantized_size
from glassformer.ground.errors import InputError
from tests.checkpoint.files import refused

KNOWN = ("Q8_0", "Q5_0", "Q4_1", "Q4_0")
K_KINDS = ("Q6_K", "Q5_K", "Q4_K")
PLAIN_KINDS = ("F32", "F16", "BF16")


def unpack(raw: np.ndarray, kind: str) -> np.ndarray:
    return gguf_dequantize(raw, GGMLQuantizationType[kind])


def random_rows(rows: int = 64, columns: int = 1024, how: str = "normal") -> np.ndarray:
    draw = np.random.default_rng(0)
    if how == "normal":
        return draw.standard_normal((rows, columns), np.float32)
    return draw.standard_t(4, (rows, columns)).astype(np.float32)  # with a few numbers far out, as real weights have them


def error(values: np.ndarray, kind: str) -> float:
    """The root of the mean square error, as a share of the numbers' own."""
    wrong = unpack(quantize_rows(values, kind), kind) - values
    return float(np.sqrt(np.square(wrong).mean() / np.square(values).mean()))


@pytest.mark.parametrize("kind", BITS)
def test_quantized_size(kind: str) -> None:
    raw = quantize_rows(random_rows(3, 512), kind)
    assert raw.dtype == np.uint8
    assert raw.shape == (3, 512 // block_size(kind)[0] * block_size(kind)[1])
    assert raw.nbytes == quantized_size(kind, (3, 512)) == 3 * 512 * BITS[kind] / 8
    assert unpack(raw, kind).shape == (3, 512)


@pytest.mark.parametrize("kind", KNOWN)
def test_simple_kinds_match_the_gguf_package(kind: str) -> None:
    values = random_rows(70)
    assert np.array_equal(quantize_rows(values, kind), quantize(values, GGMLQuantizationType[kind]))


@pytest.mark.parametrize(
    ("kind", "normal", "spread"),  # what ggml's own quantiser leaves on these numbers
    [("Q4_K", 0.07134, 0.08635), ("Q5_K", 0.03613, 0.04384), ("Q6_K", 0.01776, 0.02300)],
)
def test_k_kinds_lose_no_more_than_ggml(kind: str, normal: float, spread: float) -> None:
    assert error(random_rows(512), kind) < normal
    assert error(random_rows(512, how="spread"), kind) < spread * 1.01  # their draw was another


@pytest.mark.parametrize("kind", K_KINDS)
def test_searched_scales_beat_extremes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the scale that the extremes alone would give."""
    searched = error(random_rows(), kind)
    monkeypatch.setattr(quantization, "NEIGHBOURS", ((0, 0),))
    monkeypatch.setattr(quantization, "_fit_scale_and_minimum", lambda parts, levels, _: _extremes(parts, levels))
    monkeypatch.setattr(quantization, "_fit_scale", lambda parts, levels, _: np.abs(parts).max(axis=0) / -levels)
    assert searched < 0.97 * error(random_rows(), kind)


def _extremes(parts: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    low = np.minimum(parts.min(axis=0), 0)
    return (parts.max(axis=0) - low) / levels, -low


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K", "Q5_K"])
@pytest.mark.parametrize("low", [0.0, -0.75])
def test_representable_numbers_round_trip(kind: str, low: float) -> None:
    levels = 31 if kind == "Q5_K" else 15
    whole = np.random.default_rng(1).integers(0, levels + 1, (4, 256))
    whole[:, ::32], whole[:, 1::32] = 0, levels  # every part uses its whole range
    values = (whole * 0.125 + low).astype(np.float32)
    assert np.allclose(unpack(quantize_rows(values, kind), kind), values, atol=2e-3)


@pytest.mark.parametrize("kind", [*KNOWN, *K_KINDS])
def test_zeros_and_constant_rows(kind: str) -> None:
    assert np.array_equal(unpack(quantize_rows(np.zeros((2, 512), np.float32), kind), kind), np.zeros((2, 512), np.float32))
    for number in (0.5, -0.5, 1e-30, 1e-42):
        values = np.full((2, 256), number, np.float32)
        assert np.allclose(unpack(quantize_rows(values, kind), kind), values, rtol=0.02, atol=1e-6), number


RANGES = {"Q8_0": 0.005, "Q5_0": 0.05, "Q4_1": 0.05, "Q4_0": 0.1, "Q6_K": 0.05, "Q5_K": 0.08, "Q4_K": 0.15}


@pytest.mark.parametrize("kind", RANGES)
@given(values=arrays(np.float32, (2, 256), elements=st.floats(-60_000, 60_000, width=32)))
def test_any_numbers_stay_within_their_blocks_range(kind: str, values: np.ndarray) -> None:
    """No number is farther off than a share of its block's range, whatever the numbers."""
    found = unpack(quantize_rows(values, kind), kind)
    size = block_size(kind)[0]
    blocks, wrong = values.reshape(-1, size), np.abs(found - values).reshape(-1, size)
    reach = np.maximum(blocks.max(axis=1), 0) - np.minimum(blocks.min(axis=1), 0)
    assert np.isfinite(found).all()
    assert (wrong.max(axis=1) <= RANGES[kind] * reach + 1e-3).all()


@given(values=arrays(np.float32, (1, 32), elements=st.floats(width=32)))
def test_bf16_rounds_to_the_nearest_even(values: np.ndarray) -> None:
    wanted = torch.from_numpy(values.copy()).bfloat16()
    found = torch.from_numpy(quantize_rows(values, "BF16")).view(torch.bfloat16)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(0.5), wanted.nan_to_num(0.5))


def test_plain_kinds_round_trip() -> None:
    values = random_rows(5, 7)  # of any width
    assert np.array_equal(quantize_rows(values, "F32").view(np.float32), values)
    assert np.array_equal(quantize_rows(values, "F16").view(np.float16), values.astype(np.float16))


@pytest.mark.parametrize("kind", [*KNOWN, *K_KINDS, "BF16"])
def test_chunks_make_no_difference(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = random_rows(33, 512)
    whole = quantize_rows(values, kind)
    monkeypatch.setattr(quantization, "CHUNK", 1)
    assert np.array_equal(quantize_rows(values, kind), whole)
    assert np.array_equal(np.concatenate([quantize_rows(row, kind) for row in values]), whole)  # a row alone is a row
    assert np.array_equal(quantize_rows(np.asfortranarray(values), kind), whole)


def test_kind_names_in_any_case() -> None:
    assert [check_kind(kind) for kind in ("q4_k", "Q4_K", "bf16")] == ["Q4_K", "Q4_K", "BF16"]


@pytest.mark.parametrize(
    ("kind", "words"), [("q4k", "Did you mean 'Q4_K'?"), ("int4", "Known: F32, F16, BF16, Q8_0"), (4, "4")]
)
def test_an_unknown_kind_is_refused(kind: str, words: str) -> None:
    refused(lambda: quantize_rows(random_rows(), kind), "there is no kind", words, kind=InputError)


def test_rows_that_do_not_divide_into_blocks() -> None:
    refused(
        lambda: quantize_rows(random_rows(2, 96), "Q4_K"),
        "rows of 96 do not divide into Q4_K blocks of 256",
        "Use Q8_0",
        kind=InputError,
    )


@pytest.mark.parametrize("kind", [*KNOWN, *K_KINDS, "F16"])
@pytest.mark.parametrize(("number", "words"), [(np.nan, "no number"), (-np.inf, "infinity"), (1e5, "as large as 1e+05")])
def test_numbers_too_large_for_half_floats(kind: str, number: float, words: str) -> None:
    values = random_rows(2, 256)
    values[1, 7] = number
    refused(lambda: quantize_rows(values, kind), words, f"which {kind} cannot hold", "Use BF16 or F32.", kind=InputError)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("number", [45223.188, 1.0, 0.37, -2800.5])
def test_rows_of_one_repeated_number(kind: str, number: float) -> None:
    """There is no spread to fit a scale to, but for rounding."""
    rows = np.full((2, 256), number, np.float32)
    found = dequantize(quantize_rows(rows, kind).reshape(-1), kind, rows.shape, "here")
    assert np.abs(found - rows).max() < 0.01 * abs(number)


def test_the_table_of_kinds_is_the_gguf_packages() -> None:
    names = {code: kind_name(code) for code in range(256)}
    assert {code: name for code, name in names.items() if name} == {int(kind): kind.name for kind in GGML_QUANT_SIZES}
    assert {kind.name: block_size(kind.name) for kind in GGML_QUANT_SIZES} == {
        kind.name: size for kind, size in GGML_QUANT_SIZES.items()
    }
