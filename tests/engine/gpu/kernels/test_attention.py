"""Attention over pages against softmax in float64: masks, windows, trees, biases, chunks, prompts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.engine.gpu.kernels import attention, attention_pattern, weighted_values
from glassformer.engine.gpu.kernels.attention import prompt_tile, step_tile
from glassformer.engine.gpu.kernels.tensors import AttentionRule, CachedHeads
from tests.engine.gpu.kernels.cases import (
    DTYPES,
    Cache,
    assert_written_within,
    attended,
    attention_weights,
    pass_over,
    poisoned,
    relative_error,
)  # fmt: skip
from tests.sweeps import mostly_swept

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
CAUSAL = AttentionRule(0.125, causal=True)
TREE = [-1, 0, 0, 1, 1, 2, -1]
MASKS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": 5},
    "bidirectional": {"causal": False},
    "bidirectional window": {"causal": False, "window": 70},
    "tree": {"causal": True, "parents": [TREE, None, TREE[:3]]},
    "tree in a window": {"causal": True, "window": 3, "parents": [TREE, None, TREE[:3]]},
    "distance bias": {"causal": True, "biased": True},
    "bidirectional distance bias": {"causal": False, "biased": True},
}


def attention_rule(heads: int, biased: bool = False, **options: Any) -> AttentionRule:
    return AttentionRule(0.2, **options, distance_bias=torch.randn(heads, 13) if biased else None)


MASKED_PASSES = [(mask, prompt) for mask in MASKS for prompt in (False, True) if not (prompt and "parents" in MASKS[mask])]
QUICK_MASKS = [("causal", True), ("window", False), ("bidirectional window", True), ("tree in a window", False),
               ("bidirectional distance bias", False), ("distance bias", True)]  # fmt: skip


@pytest.mark.parametrize(("mask", "prompt"), mostly_swept(MASKED_PASSES, *QUICK_MASKS))
def test_attention_equals_softmax_in_float64(mask: str, prompt: bool) -> None:
    torch.manual_seed(3)
    options = dict(MASKS[mask])
    parents = options.pop("parents", None)
    cache, fed, heads = Cache([9, 70, 261]), [7, 1, 3], 4
    p = pass_over(cache, fed, parents)
    queries = torch.randn(sum(fed), heads * 64)
    rule = attention_rule(heads, **options)
    out, whole = poisoned(sum(fed), heads * 64)
    shape = CachedHeads(1, heads, 2, 64)
    attention(p, queries, cache.pool, out, shape, rule, max_keys=512, prompt=prompt, max_tokens=max(fed))
    weights = attention_weights(p, cache, queries.view(-1, heads, 64), 1, rule)
    assert_written_within(out, whole)
    assert relative_error(out, attended(p, cache, weights, 1)) < 1e-6


@pytest.mark.parametrize("prompt", [False, True], ids=["step", "prompt"])
@pytest.mark.parametrize("head_size", mostly_swept([8, 64, 80, 96, 128, 256], 8, 80))
def test_head_sizes(head_size: int, prompt: bool) -> None:
    torch.manual_seed(head_size)
    cache, fed, heads = Cache([40, 3], kv_heads=1, head_size=head_size, layers=1), [2, 3], 2
    p = pass_over(cache, fed)
    queries = torch.randn(5, heads * head_size)
    out, whole = poisoned(5, heads * head_size)
    rule = AttentionRule(head_size**-0.5, causal=True)
    shape = CachedHeads(0, heads, 1, head_size)
    attention(p, queries, cache.pool, out, shape, rule, max_keys=40, prompt=prompt, max_tokens=3)
    weights = attention_weights(p, cache, queries.view(5, heads, head_size), 0, rule)
    assert_written_within(out, whole)
    assert relative_error(out, attended(p, cache, weights, 0)) < 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_of_the_cache(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    cache = Cache([300, 20], dtype=dtype)
    p = pass_over(cache, [1, 1])
    queries = torch.randn(2, 6 + 4 * 64)
    results = []
    for prompt in (False, True):
        out, whole = poisoned(2, 4 * 64)
        shape = CachedHeads(0, 4, 2, 64)
        attention(p, queries[:, 6:], cache.pool, out, shape, CAUSAL, max_keys=300, prompt=prompt, max_tokens=1)
        assert_written_within(out, whole)
        results.append(out)
    weights = attention_weights(p, cache, queries[:, 6:].reshape(2, 4, 64), 0, CAUSAL)
    expected = attended(p, cache, weights, 0)
    assert max(relative_error(out, expected) for out in results) < TOLERANCE[dtype]


def test_more_heads_than_a_program_has_queries() -> None:
    torch.manual_seed(6)
    cache = Cache([7], kv_heads=1, head_size=16, layers=1)
    p = pass_over(cache, [2])
    queries = torch.randn(2, 20 * 16)
    out, whole = poisoned(2, 20 * 16)
    attention(p, queries, cache.pool, out, CachedHeads(0, 20, 1, 16), CAUSAL, max_keys=7)
    weights = attention_weights(p, cache, queries.view(2, 20, 16), 0, CAUSAL)
    assert_written_within(out, whole)
    assert relative_error(out, attended(p, cache, weights, 0)) < 1e-6


def test_cross_attention_sees_the_whole_source() -> None:
    torch.manual_seed(7)
    source, own = Cache([5, 66], layers=1), Cache([3, 2], layers=1)
    p = pass_over(own, [2, 1])
    p.source_page_table, p.source_lengths = source.page_table, p.ends.new_tensor(source.lengths)
    queries = torch.randn(3, 4 * 64)
    out, whole = poisoned(3, 4 * 64)
    shape = CachedHeads(0, 4, 2, 64, cross=True)
    attention(p, queries, source.pool, out, shape, AttentionRule(0.125, causal=True, window=1), max_keys=66)
    weights = attention_weights(p, source, queries.view(3, 4, 64), 0, AttentionRule(0.125, causal=False))
    assert_written_within(out, whole)
    assert relative_error(out, attended(p, source, weights, 0)) < 1e-6
    pattern = torch.zeros(3, 4 * 66)
    for token, weight in enumerate(weights):
        pattern.view(3, 4, 66)[token, :, : weight.shape[1]] = weight.float()
    again, whole = poisoned(3, 4 * 64)
    weighted_values(p, pattern, source.pool, again, shape, keys=66)
    assert_written_within(again, whole)
    assert relative_error(again, attended(p, source, weights, 0)) < 1e-6


def test_attention_of_some_tokens_leaves_the_others() -> None:
    torch.manual_seed(8)
    cache = Cache([6, 9])
    p = pass_over(cache, [3, 2])
    queries = torch.randn(5, 4 * 64)
    shape = CachedHeads(0, 4, 2, 64)
    everything, some = (poisoned(5, 4 * 64)[0] for _ in range(2))
    attention(p, queries, cache.pool, everything, shape, CAUSAL, max_keys=9)
    rows = torch.tensor([2, 4], dtype=torch.int32)
    attention(p, queries, cache.pool, some, shape, CAUSAL, max_keys=9, rows=rows)
    assert torch.equal(some[[2, 4]], everything[[2, 4]])
    assert some[[0, 1, 3]].isnan().all()


def test_a_token_alone_equals_the_token_in_a_batch() -> None:
    torch.manual_seed(9)
    cache = Cache([300, 20, 70], dtype=torch.bfloat16)
    p = pass_over(cache, [1, 2, 1])
    queries = torch.randn(4, 4 * 64)
    shape = CachedHeads(1, 4, 2, 64)
    together, _ = poisoned(4, 4 * 64)
    attention(p, queries, cache.pool, together, shape, CAUSAL, max_keys=1024)
    alone = pass_over(cache, [0, 0, 1])
    out, _ = poisoned(1, 4 * 64)
    attention(alone, queries[3:], cache.pool, out, shape, CAUSAL, max_keys=70)
    assert torch.equal(out[0], together[3])


@pytest.mark.parametrize("mask", mostly_swept(MASKS, "tree in a window"))
def test_the_pattern_and_what_follows_from_it(mask: str) -> None:
    torch.manual_seed(10)
    options = dict(MASKS[mask])
    cache, fed, heads, keys = Cache([9, 70, 5]), [7, 1, 3], 4, 75
    p = pass_over(cache, fed, options.pop("parents", None))
    queries = torch.randn(sum(fed), heads * 64)
    rule, shape = attention_rule(heads, **options), CachedHeads(1, heads, 2, 64)
    pattern, whole = poisoned(sum(fed), heads * keys)
    attention_pattern(p, queries, cache.pool, pattern, shape, rule, keys=keys)
    assert_written_within(pattern, whole)
    weights = attention_weights(p, cache, queries.view(-1, heads, 64), 1, rule)
    for token, weight in enumerate(weights):
        row = pattern[token].reshape(heads, keys)
        torch.testing.assert_close(row[:, : weight.shape[1]], weight.float(), rtol=1e-5, atol=1e-6)
        assert not row[:, weight.shape[1] :].any()
    out, whole = poisoned(sum(fed), heads * 64)
    weighted_values(p, pattern, cache.pool, out, shape, keys=keys)
    assert_written_within(out, whole)
    assert relative_error(out, attended(p, cache, weights, 1)) < 1e-6


HOPPER, HOME = 227 * 1024, 99 * 1024  # shared memory of a program, on an H200 and on the cards that people have at home


@pytest.mark.parametrize(
    ("head_size", "dtype", "shared", "prompt", "step"),
    [
        (128, torch.bfloat16, HOPPER, (64, 3), (128, 2)),
        (128, torch.bfloat16, HOME, (64, 2), (128, 2)),
        (256, torch.bfloat16, HOPPER, (64, 2), (64, 2)),
        (256, torch.bfloat16, HOME, (32, 1), (64, 2)),
        (256, torch.float32, HOPPER, (64, 1), (64, 2)),
        (256, torch.float32, HOME, (16, 1), (32, 1)),
    ],
)
def test_tiles_fit_the_shared_memory(
    head_size: int, dtype: torch.dtype, shared: int, prompt: tuple[int, int], step: tuple[int, int]
) -> None:
    chosen = prompt_tile(head_size, dtype, shared)
    assert (chosen.tokens, chosen.stages) == prompt
    chosen = step_tile(head_size, dtype, shared)
    assert (chosen.keys, chosen.stages) == step
