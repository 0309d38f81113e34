"""Head norms, rotary positions, and the store to the paged cache."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.engine.gpu.kernels import rope_kv_store
from glassformer.engine.gpu.kernels.tensors import CachedHeads, DeviceNorm
from tests.engine.gpu.kernels.cases import DTYPES, Cache, pass_over, relative_error
from tests.engine.gpu.kernels.test_matmul import make_norm, normed

HEADS, KV_HEADS = 4, 2


def rotated(x: Tensor, positions: Tensor, frequencies: Tensor, scale: float) -> Tensor:
    """RoPE in float64 over (tokens, heads, head_size), pairs half a head apart."""
    angles = (positions[:, None].float() * frequencies).double()[:, None]
    low, high = x.double().chunk(2, -1)
    cosine, sine = angles.cos() * scale, angles.sin() * scale
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def split(qkv: Tensor, size: int) -> list[Tensor]:
    """Queries, keys and values, (tokens, heads, head_size), from a buffer that begins with two other columns."""
    parts = qkv[:, 2:].split([HEADS * size, KV_HEADS * size, KV_HEADS * size], dim=1)
    return [part.reshape(len(qkv), -1, size) for part in parts]


def shape(size: int, **more: Any) -> dict[str, Any]:
    offsets = {"query_offset": 2, "key_offset": 2 + HEADS * size, "value_offset": 2 + (HEADS + KV_HEADS) * size}
    return {"heads": CachedHeads(1, HEADS, KV_HEADS, size), **offsets, **more}


@pytest.mark.parametrize("size", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("norm_kind", [None, "rms", "layer"])
def test_heads_are_normed_rotated_and_stored(size: int, norm_kind: str | None) -> None:
    torch.manual_seed(size)
    cache = Cache([70, 3], head_size=size, kv_heads=KV_HEADS)
    p, before = pass_over(cache, [2, 1]), cache.pool.clone()
    qkv = torch.randn(3, 2 + (HEADS + 2 * KV_HEADS) * size)
    queries, keys, values = split(qkv.clone(), size)
    border = qkv[:, :2].clone()
    norms = [make_norm(norm_kind, size) if norm_kind else None for _ in range(2)]
    frequencies = 10000.0 ** -torch.linspace(0, 1, size // 2)
    fields = shape(size, query_norm=norms[0], key_norm=norms[1], frequencies=frequencies, rope_scale=1.1)
    rope_kv_store(p, qkv, cache.pool, **fields)
    if norm_kind:
        queries, keys = (normed(part, norm) for part, norm in zip((queries, keys), norms, strict=True) if norm is not None)
    queries, keys = (rotated(part, p.positions, frequencies, 1.1) for part in (queries, keys))
    for part, expected in zip(split(qkv, size), (queries, keys, values), strict=True):
        assert relative_error(part, expected) < 1e-6
    assert torch.equal(qkv[:, :2], border)
    for token, (row, slot) in enumerate(((0, 68), (0, 69), (1, 2))):
        stored = cache.at(row, slot)
        assert torch.equal(stored[1, 0], split(qkv, size)[1][token])
        assert torch.equal(stored[1, 1], split(qkv, size)[2][token])
        stored[1] = before[int(cache.page_table[row, slot // 64]), 1, :, :, slot % 64]
    assert torch.equal(cache.pool.nan_to_num(9.0), before.nan_to_num(9.0))  # nothing else was written


@pytest.mark.parametrize(("size", "count"), [(16, 4), (24, 16), (16, 16)])
@pytest.mark.parametrize("norm_kind", [None, "rms", "layer"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_part_of_each_head_is_rotated(size: int, count: int, norm_kind: str | None, interleaved: bool) -> None:
    torch.manual_seed(size + count)
    cache = Cache([5], head_size=size, kv_heads=KV_HEADS)
    p, qkv = pass_over(cache, [3]), torch.randn(3, 2 + (HEADS + 2 * KV_HEADS) * size)
    *turned, values = split(qkv.clone(), size)
    norms = [make_norm(norm_kind, size) if norm_kind else None for _ in range(2)]
    frequencies = 10000.0 ** -torch.linspace(0, 1, count // 2)
    fields = shape(size, query_norm=norms[0], key_norm=norms[1], frequencies=frequencies, interleaved=interleaved)
    rope_kv_store(p, qkv, cache.pool, **fields)
    for part, how, written in zip(turned, norms, split(qkv, size), strict=False):
        part = part if how is None else normed(part, how)
        first = part[..., :count]
        pairs = first.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) if interleaved else first
        pairs = rotated(pairs, p.positions, frequencies, 1.0)
        pairs = pairs.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) if interleaved else pairs
        assert relative_error(written, torch.cat((pairs, part[..., count:].double()), -1)) < 1e-6
    for token, slot in enumerate((2, 3, 4)):
        assert torch.equal(cache.at(0, slot)[1, 0], split(qkv, size)[1][token])
        assert torch.equal(cache.at(0, slot)[1, 1], values[token])


def test_heads_are_brought_to_length_one_where_nothing_is_stored() -> None:
    """Without values in the buffer, and without a slot's page."""
    x = torch.randn(2, (HEADS + KV_HEADS) * 12)
    expected = x.view(2, -1, 12).double()
    expected = expected / (expected.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    length = DeviceNorm("l2", torch.ones(12), None, 1e-6)
    fields = {"query_norm": length, "key_norm": length, "key_offset": HEADS * 12, "store": False}
    rope_kv_store(pass_over(Cache([4]), [2]), x, torch.empty(0), CachedHeads(0, HEADS, KV_HEADS, 12), **fields)
    assert relative_error(x, expected.view(2, -1)) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotating_and_storing_apart_equals_both_in_one(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    together, apart = Cache([9], dtype=dtype, head_size=16), Cache([9], dtype=dtype, head_size=16)
    apart.pool, apart.page_table = together.pool.clone(), together.page_table
    p = pass_over(together, [2])
    qkv = torch.randn(2, 2 + (HEADS + 2 * KV_HEADS) * 16)
    again = qkv.clone()
    fields = shape(16, frequencies=torch.rand(8), key_norm=make_norm("rms", 16))
    rope_kv_store(p, qkv, together.pool, **fields)
    rope_kv_store(p, again, apart.pool, **fields, store=False)
    assert torch.equal(again, qkv)
    rope_kv_store(p, again, apart.pool, **fields, rotate=False)
    assert torch.equal(again, qkv)
    assert torch.equal(apart.pool.nan_to_num(9.0), together.pool.nan_to_num(9.0))


def test_keys_and_values_of_a_source_go_to_its_pages() -> None:
    source, own = Cache([5], head_size=16), Cache([2], head_size=16)
    p = pass_over(source, [5])
    p.page_table, p.source_page_table = own.page_table, source.page_table
    keys_values = torch.randn(5, 2 * KV_HEADS * 16)
    heads = CachedHeads(0, 0, KV_HEADS, 16, cross=True)
    rope_kv_store(p, keys_values, source.pool, heads, value_offset=KV_HEADS * 16, rotate=False)
    stored = source.plane(0, 0)  # (2, kv_heads, length, head_size)
    expected = keys_values.view(5, 2, KV_HEADS, 16).permute(1, 2, 0, 3)
    assert torch.equal(stored, expected)
