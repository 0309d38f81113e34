"""Inputs for kernels, poisoned outputs, and attention written out in float64."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from glassformer.engine.gpu.kernels.tensors import AttentionRule, PassTensors
from glassformer.engine.paged_rows import PAGE

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def poisoned(*shape: int, guard: int = 3) -> tuple[Tensor, Tensor]:
    """An output full of NaN, and the wider tensor that it is a part of, whose rest must stay NaN."""
    whole = torch.full((shape[0] + guard, shape[1] + guard), float("nan"))
    return whole[: shape[0], : shape[1]], whole


def assert_written_within(out: Tensor, whole: Tensor) -> None:
    """Everything in `out` was written, and nothing around it."""
    assert not out.isnan().any()
    assert int(whole.isnan().sum()) == whole.numel() - out.numel()


def relative_error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@dataclass
class Cache:
    """Rows of keys and values, scattered over a pool's pages in no order; what no row has is NaN."""

    lengths: list[int]
    layers: int = 2
    kv_heads: int = 2
    head_size: int = 64
    dtype: torch.dtype = torch.float32
    pool: Tensor = field(init=False)
    page_table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        pages = [-(-length // PAGE) for length in self.lengths]
        numbers = torch.randperm(sum(pages) + 2)
        self.pool = torch.full((len(numbers), self.layers, 2, self.kv_heads, PAGE, self.head_size), float("nan"))
        self.page_table = torch.full((len(pages), max(pages) + 1), -1, dtype=torch.int32)
        for row, (length, count) in enumerate(zip(self.lengths, pages, strict=True)):
            self.page_table[row, :count] = numbers[sum(pages[:row]) : sum(pages[: row + 1])].int()
            for slot in range(length):
                self.at(row, slot)[:] = torch.randn(self.layers, 2, self.kv_heads, self.head_size)
        self.pool = self.pool.to(self.dtype)

    def at(self, row: int, slot: int) -> Tensor:
        """A slot's keys and values: (layers, 2, kv_heads, head_size)."""
        return self.pool[int(self.page_table[row, slot // PAGE]), :, :, :, slot % PAGE]

    def plane(self, row: int, layer: int) -> Tensor:
        """A row's keys and values of one layer: (2, kv_heads, length, head_size)."""
        return torch.stack([self.at(row, slot)[layer] for slot in range(self.lengths[row])], dim=2)


def pass_over(cache: Cache, fed: list[int], parents: list[list[int] | None] | None = None) -> PassTensors:
    """A pass over the last `fed` tokens of each row of a cache."""

    def ints(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    starts = [length - count for length, count in zip(cache.lengths, fed, strict=True)]
    slots = [start + number for start, count in zip(starts, fed, strict=True) for number in range(count)]
    p = PassTensors(
        ids=torch.zeros(sum(fed), dtype=torch.int32), positions=ints(slots), slots=ints(slots),
        feed_of_token=ints([feed for feed, count in enumerate(fed) for _ in range(count)]), starts=ints(starts),
        ends=ints(cache.lengths), first_tokens=ints([sum(fed[:number]) for number in range(len(fed))]),
        token_counts=ints(fed), page_table=cache.page_table, states=ints([1 + row for row in range(len(fed))]),
    )  # fmt: skip
    if parents is not None:
        add_trees(p, starts, fed, parents)
    return p


def add_trees(p: PassTensors, starts: list[int], fed: list[int], parents: list[list[int] | None]) -> None:
    width, first = max(fed), 0
    p.tree_mask = torch.zeros(sum(fed), width, dtype=torch.uint8)
    p.tree_positions = torch.zeros(len(fed), width, dtype=torch.int32)
    for feed, (start, count, tree) in enumerate(zip(starts, fed, parents, strict=True)):
        for number in range(count):
            parent = number - 1 if tree is None else tree[number]
            if parent >= 0:
                p.tree_mask[first + number] = p.tree_mask[first + parent]
            p.tree_mask[first + number, number] = 1
            p.tree_positions[feed, number] = start if parent < 0 else p.tree_positions[feed, parent] + 1
        p.positions[first : first + count] = p.tree_positions[feed, :count]
        first += count


def attention_weights(p: PassTensors, cache: Cache, queries: Tensor, layer: int, rule: AttentionRule) -> list[Tensor]:
    """Of each token: (heads, keys) in float64. queries: (tokens, heads, head_size)."""
    weights = []
    for token, feed in enumerate(p.feed_of_token.tolist()):
        keys = cache.plane(feed, layer)[0].double()
        heads = queries.shape[1]
        products = keys.repeat_interleave(heads // cache.kv_heads, 0) @ queries[token].double()[:, :, None]
        scores = products[..., 0] * rule.scale
        position, start = int(p.positions[token]), int(p.starts[feed])
        for key in range(keys.shape[1]):
            in_tree = p.tree_mask is not None and key >= start
            key_position = int(p.tree_positions[feed, key - start]) if in_tree and p.tree_positions is not None else key
            hidden = rule.causal and key > int(p.slots[token])
            hidden |= bool(in_tree and p.tree_mask is not None and not p.tree_mask[token, key - start])
            hidden |= rule.window > 0 and position - key_position >= rule.window
            if rule.distance_bias is not None:
                away = max(-rule.max_distance, min(rule.max_distance, key - position))
                scores[:, key] += rule.distance_bias[:, away + rule.max_distance].double()
            if hidden:
                scores[:, key] = float("-inf")
        weights.append(scores.softmax(-1))
    return weights


def attended(p: PassTensors, cache: Cache, weights: list[Tensor], layer: int) -> Tensor:
    """Heads from attention weights, (tokens, heads · head_size) in float64."""
    outputs = []
    for token, feed in enumerate(p.feed_of_token.tolist()):
        values = cache.plane(feed, layer)[1].double()
        heads = weights[token].shape[0]
        outputs.append((weights[token][:, None] @ values.repeat_interleave(heads // cache.kv_heads, 0)).flatten())
    return torch.stack(outputs)
