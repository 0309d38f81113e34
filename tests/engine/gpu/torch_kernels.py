"""The GPU engine's kernels written out in PyTorch, token by token: what tests of its rows, passes and pages run with.

Triton's interpreter takes a second for what this takes a millisecond for. The launchers have the same arguments as those in
`engine/gpu/kernels`, which have tests of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.decoding.policy import pick
from glassformer.decoding.rules import Rule, sampling
from glassformer.decoding.shortlist import Shortlist
from glassformer.decoding.token_history import TokenHistory
from glassformer.engine.gpu.kernels.choosing import RULES, ChoiceMode
from glassformer.engine.gpu.kernels.recurrence import StateHeads
from glassformer.engine.gpu.kernels.tensors import AttentionRule, CachedHeads, DeviceMatrix, DeviceNorm, PassTensors
from glassformer.engine.paged_rows import PAGE

ACTIVATIONS: dict[str, Any] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "tanh": torch.tanh,
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "no_activation": lambda x: x,
}


def embed(
    p: PassTensors, tables: Sequence[DeviceMatrix], out: Tensor, *, position_offset: int = 0, scale: float = 1.0
) -> None:
    out[:] = tables[0].data[p.ids].float() * scale
    for table, rows in zip(tables[1:], (p.positions + position_offset, torch.zeros_like(p.positions)), strict=False):
        out += table.data[rows].float()


def _normed(x: Tensor, norm: DeviceNorm | None) -> Tensor:
    if norm is None:
        return x
    parts = x.unflatten(-1, (norm.groups, -1))
    parts = parts - parts.mean(-1, keepdim=True) if norm.kind == "layer" else parts
    squares = parts.square()
    sizes = squares.sum(-1, keepdim=True) if norm.kind == "l2" else squares.mean(-1, keepdim=True)
    x = (parts * torch.rsqrt(sizes + norm.eps)).flatten(-2) * norm.weight
    return x if norm.bias is None else x + norm.bias


def norm(x: Tensor, norm: DeviceNorm, out: Tensor, *, rows: Tensor | None = None) -> None:
    places = _places(rows, x)
    out[places] = _normed(x[places], norm)


def _places(rows: Tensor | None, x: Tensor) -> Any:
    return slice(0, len(x)) if rows is None else rows.long()


def matmul(
    x: Tensor, matrices: Sequence[DeviceMatrix], out: Tensor, *, norm: DeviceNorm | None = None, epilogue: str = "none",
    activation: str | None = None, activated_from: int = 0, residual: Tensor | None = None, scale: float = 1.0,
    input_rows: Tensor | None = None, output_rows: Tensor | None = None, prompt: bool = False,
) -> None:  # fmt: skip
    inputs = _normed(x[_places(input_rows, x)], norm)
    results = [inputs.to(matrix.data.dtype).float() @ matrix.data.T.float() for matrix in matrices]
    results = [
        result.float() + (0 if matrix.bias is None else matrix.bias)
        for result, matrix in zip(results, matrices, strict=True)
    ]
    sums = torch.cat(results, dim=1)
    if epilogue == "gate":
        gates, values = sums.chunk(2, dim=1)
        sums = ACTIVATIONS[activation or "silu"](gates) * values
    sums = sums * scale
    if epilogue == "activate":
        sums[:, activated_from:] = ACTIVATIONS[activation or "silu"](sums[:, activated_from:])
    places = slice(0, len(sums)) if output_rows is None else output_rows.long()
    if residual is not None:
        sums = residual[places] + sums
    out[places] = sums


def rope_kv_store(
    p: PassTensors, qkv: Tensor, pool: Tensor, heads: CachedHeads, *, query_offset: int = 0, key_offset: int = 0,
    value_offset: int = 0, query_norm: DeviceNorm | None = None, key_norm: DeviceNorm | None = None,
    frequencies: Tensor | None = None, rope_scale: float = 1.0, interleaved: bool = False, rotate: bool = True,
    store: bool = True,
) -> None:  # fmt: skip
    def part(offset: int, count: int) -> Tensor:
        return qkv[:, offset : offset + count * heads.head_size].view(len(qkv), count, heads.head_size)

    keys, values = part(key_offset, heads.kv_heads), part(value_offset, heads.kv_heads)
    if rotate:
        for x, head_norm in ((part(query_offset, heads.heads), query_norm), (keys, key_norm)):
            x[:] = _rotated(_normed(x, head_norm), p.positions, frequencies, rope_scale, interleaved)
    if store:
        table = p.source_page_table if heads.cross else p.page_table
        assert table is not None
        for token, slot in enumerate(p.slots.tolist()):
            page = int(table[int(p.feed_of_token[token]), slot // PAGE])
            pool[page, heads.layer, 0, :, slot % PAGE] = keys[token].to(pool.dtype)
            pool[page, heads.layer, 1, :, slot % PAGE] = values[token].to(pool.dtype)


def _rotated(x: Tensor, positions: Tensor, frequencies: Tensor | None, scale: float, interleaved: bool) -> Tensor:
    if frequencies is None:
        return x
    angles = (positions[:, None].float() * frequencies)[:, None]
    cosine, sine = angles.cos() * scale, angles.sin() * scale
    count = 2 * len(frequencies)
    if interleaved:
        low, high = x[..., 0:count:2], x[..., 1:count:2]
        turned = torch.stack((low * cosine - high * sine, high * cosine + low * sine), dim=-1).flatten(-2)
        return torch.cat((turned, x[..., count:]), dim=-1)
    low, high = x[..., :count].chunk(2, dim=-1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine, x[..., count:]), dim=-1)


def _plane(pool: Tensor, p: PassTensors, feed: int, heads: CachedHeads) -> tuple[Tensor, Tensor]:
    """A row's keys and values, (kv_heads, keys, head_size) each."""
    table, ends = (p.source_page_table, p.source_lengths) if heads.cross else (p.page_table, p.ends)
    assert table is not None
    assert ends is not None
    end = int(ends[feed])
    pages = pool[table[feed, : -(-end // PAGE)].long(), heads.layer].float()  # (pages, 2, kv_heads, PAGE, head_size)
    keys, values = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :end]
    return keys, values


def _attention_weights(
    p: PassTensors, queries: Tensor, token: int, keys: Tensor, heads: CachedHeads, rule: AttentionRule
) -> Tensor:
    """Of one token's heads, (heads, keys)."""
    feed, position, slot = (int(numbers[token]) for numbers in (p.feed_of_token, p.positions, p.slots))
    query, places = queries[token].view(heads.heads, heads.head_size), torch.arange(keys.shape[1])
    scores = (query[:, None] @ keys.repeat_interleave(len(query) // len(keys), 0).transpose(1, 2))[:, 0] * rule.scale
    seen = torch.ones_like(places, dtype=torch.bool)
    if not heads.cross:
        stands = places.clone()
        start = int(p.starts[feed])
        if p.tree_mask is not None:
            assert p.tree_positions is not None
            inside = places >= start
            stands[inside] = p.tree_positions[feed, places[inside] - start].long()
            seen[inside] = p.tree_mask[token, places[inside] - start] != 0
        if rule.causal:
            seen &= places <= slot
        if rule.window:
            seen &= position - stands < rule.window
    if rule.distance_bias is not None:
        away = (places - position).clamp(-rule.max_distance, rule.max_distance) + rule.max_distance
        scores = scores + rule.distance_bias[:, away]
    return scores.masked_fill(~seen, -torch.inf).softmax(-1)


def attention(
    p: PassTensors, queries: Tensor, pool: Tensor, out: Tensor, heads: CachedHeads, rule: AttentionRule, *, max_keys: int,
    rows: Tensor | None = None, prompt: bool = False, max_tokens: int = 0,
) -> None:  # fmt: skip
    columns = heads.heads * heads.head_size
    for token in range(len(queries)) if rows is None else rows.tolist():
        keys, values = _plane(pool, p, int(p.feed_of_token[token]), heads)
        assert keys.shape[1] <= max_keys
        out[token] = _mixed(_attention_weights(p, queries[:, :columns], token, keys, heads, rule), values).flatten()


def _mixed(weights: Tensor, values: Tensor) -> Tensor:
    """Each head's weighted values, (heads, head_size)."""
    return (weights[:, None] @ values.repeat_interleave(len(weights) // len(values), 0))[:, 0]


def attention_pattern(
    p: PassTensors, queries: Tensor, pool: Tensor, out: Tensor, heads: CachedHeads, rule: AttentionRule, *, keys: int
) -> None:
    out.zero_()
    columns = heads.heads * heads.head_size
    for token in range(len(queries)):
        row_keys, _ = _plane(pool, p, int(p.feed_of_token[token]), heads)
        weights = _attention_weights(p, queries[:, :columns], token, row_keys, heads, rule)
        out[token].view(heads.heads, keys)[:, : weights.shape[1]] = weights


def weighted_values(p: PassTensors, pattern: Tensor, pool: Tensor, out: Tensor, heads: CachedHeads, *, keys: int) -> None:
    for token in range(len(pattern)):
        _, values = _plane(pool, p, int(p.feed_of_token[token]), heads)
        out[token] = _mixed(pattern[token].view(heads.heads, keys)[:, : values.shape[1]], values).flatten()


def add(x: Tensor, other: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    places = _places(rows, x)
    out[places] = other[places] + x[places]


def activate(x: Tensor, activation: str, out: Tensor, *, rows: Tensor | None = None) -> None:
    places = _places(rows, x)
    out[places] = ACTIVATIONS[activation](x[places])


def gate(gates: Tensor, activation: str, x: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    places = _places(rows, x)
    out[places] = ACTIVATIONS[activation](gates[places]) * x[places]


def _feeds(p: PassTensors) -> list[tuple[range, int]]:
    """Each feed's tokens, and where its row's state lies."""
    numbers = zip(p.first_tokens.tolist(), p.token_counts.tolist(), p.states.tolist(), strict=True)
    return [(range(first, first + count), state) for first, count, state in numbers]


def causal_conv(
    p: PassTensors, x: Tensor, pool: Tensor, kernel: Tensor, bias: Tensor | None, out: Tensor, *, state_offset: int,
    activation: str | None,
) -> None:  # fmt: skip
    size, width = kernel.shape
    for tokens, state in _feeds(p):
        kept = pool[state, state_offset : state_offset + (size - 1) * width].view(size - 1, width)
        inputs = torch.cat((kept, x[tokens.start : tokens.stop]))
        for place, token in enumerate(tokens):
            total = (inputs[place : place + size] * kernel).sum(0) + (0 if bias is None else bias)
            out[token] = total if activation is None else ACTIVATIONS[activation](total)
        kept[:] = inputs[len(tokens) :]


def time_step(x: Tensor, bias: Tensor, out: Tensor, *, least: float, most: float) -> None:
    out[:] = F.softplus(x + bias).clamp(least, most)


def decay(x: Tensor, rate: Tensor, out: Tensor) -> None:
    out[:] = (-rate.exp() * x).exp()


class _StateToken(NamedTuple):
    query: Tensor  # (heads, key_size)
    key: Tensor
    value: Tensor  # (heads, head_size)
    decay: Tensor  # (heads, key_size or 1)
    write: Tensor  # (heads, 1)


def _state_token(x: Tensor, decays: Tensor, writes: Tensor, heads: StateHeads, token: int) -> _StateToken:
    def part(offset: int, count: int, size: int) -> Tensor:
        return x[token, offset : offset + count * size].view(count, size).repeat_interleave(heads.heads // count, 0)

    return _StateToken(
        part(heads.query_offset, heads.key_heads, heads.key_size), part(heads.key_offset, heads.key_heads, heads.key_size),
        part(heads.value_offset, heads.heads, heads.head_size), decays[token].view(heads.heads, -1).clamp_min(0),
        writes[token][:, None],
    )  # fmt: skip


def recur(
    p: PassTensors, x: Tensor, pool: Tensor, decays: Tensor, writes: Tensor, out: Tensor, heads: StateHeads, *,
    norms: Tensor | None = None, skip: Tensor | None = None,
) -> None:  # fmt: skip
    shape = (heads.heads, heads.key_size, heads.head_size)
    for tokens, place in _feeds(p):
        state = pool[place, heads.state_offset : heads.state_offset + math.prod(shape)].view(shape)
        for token in tokens:
            t = _state_token(x, decays, writes, heads, token)
            state *= t.decay[..., None]
            known = (t.key[..., None] * state).sum(1) if heads.delta else 0
            state += t.key[..., None] * ((t.value - known) * t.write)[:, None]
            passed = 0 if skip is None else skip[:, None] * t.value
            out[token] = ((t.query[..., None] * state).sum(1) * heads.scale + passed).flatten()
            if norms is not None:
                norms[token] = state.square().sum((1, 2)).sqrt()


def recur_pattern(
    p: PassTensors, x: Tensor, decays: Tensor, writes: Tensor, out: Tensor, heads: StateHeads, *, keys: int,
    skip: Tensor | None = None,
) -> None:  # fmt: skip
    out.zero_()
    for tokens, _ in _feeds(p):
        for token in tokens:
            left = _state_token(x, decays, writes, heads, token).query * heads.scale
            for place in reversed(range(tokens.start, token + 1)):
                t = _state_token(x, decays, writes, heads, place)
                found = (left * t.key).sum(-1, keepdim=True) * t.write
                out[token].view(heads.heads, keys)[:, place - tokens.start] = found[:, 0]
                left = (left - (found * t.key if heads.delta else 0)) * t.decay
            if skip is not None:
                out[token].view(heads.heads, keys)[:, token - tokens.start] += skip


def recur_values(p: PassTensors, x: Tensor, pattern: Tensor, out: Tensor, heads: StateHeads, *, keys: int) -> None:
    for tokens, _ in _feeds(p):
        width = heads.heads * heads.head_size
        values = x[tokens.start : tokens.stop, heads.value_offset : heads.value_offset + width]
        values = values.view(len(tokens), heads.heads, heads.head_size).transpose(0, 1)
        for token in tokens:
            out[token] = _mixed(pattern[token].view(heads.heads, keys)[:, : len(tokens)], values).flatten()


def copy(x: Tensor, out: Tensor, *, rows: Tensor | None = None) -> None:
    places = _places(rows, x)
    out[places, : x.shape[1]] = x[places]


def top_scores(scores: Tensor, values: Tensor, ids: Tensor, sums: Tensor) -> None:
    best = scores.sort(dim=1, descending=True, stable=True)  # of equal scores, the lowest ids
    values[:], ids[:] = best.values[:, : values.shape[1]], best.indices[:, : ids.shape[1]]
    depths = scores - best.values[:, :1]
    weights = depths.exp()
    sums[:, 0], sums[:, 1] = weights.sum(1), (weights * depths.clamp(min=-200)).sum(1)
    sums[:, 2] = (scores > -torch.inf).sum(1)


def choose_best(scores: Tensor, tokens: Tensor) -> None:
    tokens[:] = torch.where(_are_numbers(scores), scores.argmax(1), -1)


def _are_numbers(scores: Tensor) -> Tensor:
    return ~(scores.isnan().any(1) | scores.max(1).values.isinf())


def advance(
    tokens: Tensor, chosen: Tensor, step: Tensor, ids: Tensor, positions: Tensor, slots: Tensor, starts: Tensor, ends: Tensor
) -> None:
    chosen[step.long(), torch.arange(len(tokens))] = tokens
    ids[:] = tokens.clamp(min=0)
    for numbers in (positions, slots, starts, ends, step):
        numbers += 1


def choose(scores: Tensor, rules: Tensor, step: Tensor, records: Tensor, tokens: Tensor, mode: ChoiceMode) -> None:
    """Row by row, with the rules as the policy has them."""
    for row, (raw, numbers) in enumerate(zip(scores, rules.tolist(), strict=True)):
        temperature, top_k, top_p, min_depth, sampled = numbers[:RULES]
        record = records[int(step[row]), row]
        tokens[row] = -1
        if not _are_numbers(raw[None]):
            continue
        scaled = raw / torch.tensor(temperature, dtype=torch.float32)
        kept = {"model": raw, "temperature": scaled}
        for name, rule in (("top_k", sampling.top_k(int(top_k) or len(raw))), ("top_p", sampling.top_p(top_p))):
            kept[name] = _ruled(rule, list(kept.values())[-1])
        kept["min_p"] = _ruled(sampling.min_p(math.exp(min_depth)), kept["top_p"])
        shares = Shortlist(kept["min_p"].numpy()).probabilities()
        token = pick(shares, numbers[RULES + int(step[row])]) if sampled else int(raw.argmax())
        tokens[row] = token
        record[:3] = torch.tensor([shares[token], raw.max(), raw[token]], dtype=torch.float64)
        if mode.shown:
            for number, stage in enumerate(kept.values()):
                depths = (stage - stage.max()).double()
                weights = depths.exp()
                sums = torch.stack(((stage > -torch.inf).sum(), weights.sum(), (weights * depths.clamp(min=-200)).sum()))
                record[3 + 3 * number : 6 + 3 * number] = sums
            order = scaled.sort(descending=True, stable=True).indices[: mode.shown]
            record[-2 * mode.shown :] = torch.tensor([-1.0] * mode.shown + [-torch.inf] * mode.shown)
            record[-2 * mode.shown :][: len(order)] = order.double()
            record[-mode.shown :][: len(order)] = raw[order].double()


def _ruled(rule: Rule, scores: Tensor) -> Tensor:
    shortlist = rule(Shortlist(scores.numpy()), TokenHistory((), 0))
    return torch.from_numpy(shortlist.full_scores(len(scores)).copy())
