"""What each kind of op is in PyTorch: functions whose first arguments are bound when a container's plan is made.

The last three arguments are those of every step: the container, its values by slot, the pass.

Shapes: x (batch, length, hidden); heads (batch, heads, length, head_size).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.layers.activations import ACTIVATIONS
from glassformer.layers.attention import soft_cap
from glassformer.layers.container import Path, Values, part
from glassformer.layers.forward_pass import DistanceVectors, ForwardPass
from glassformer.layers.positions import relative_buckets, sinusoidal_positions
from glassformer.ops.op import Op
from glassformer.ops.positions import DistanceBuckets


def own_value(op: Op, *rest: Any) -> None:
    """Of a kind that says by itself what it is in PyTorch."""
    *reads, write, _, values, _ = rest
    values[write] = op.torch_value(*(values[read] for read in reads))


def projected_value(op: Op, path: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    """The same of what its projection gives."""
    values[write] = op.torch_value(part(m, path)(values[read]))


def scaled_linear(path: Path, scale: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, path)(values[read]) * scale


def scores(
    path: Path, factor: float, before: bool, limit: float | None, bias: str, read: int, write: int, m: Any,
    values: Values, p: Any,
) -> None:  # fmt: skip
    """The last layer, scaled (`before`: as the states that it reads) and capped; `bias`: a buffer beside it."""
    x = values[read]
    result = part(m, path)(x * factor if before else x)
    if factor != 1.0 and not before:
        result = result * factor
    if bias:
        result = result + getattr(part(m, path[:-1]), bias)
    values[write] = soft_cap(result, limit)


def heads(path: Path, size: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    for name in path:
        m = m._modules[name]
    x = m(values[read])
    values[write] = x.view(*x.shape[:-1], -1, size).transpose(1, 2)


def separate_heads(paths: tuple[Path, ...], read: int, write: int, m: Any, values: Values, p: Any) -> None:
    """Of heads that have a projection each."""
    x = values[read]
    values[write] = torch.stack([part(m, path)(x) for path in paths], dim=1)


def fused_heads(
    first: int, count: int, total: int, size: int, read: int, write: int, m: Any, values: Values, p: Any
) -> None:
    """So many heads of a projection's; of which a rank of a split model has a share."""
    x = values[read]
    all_heads = x.view(*x.shape[:-1], -1, size).transpose(1, 2)
    if (there := all_heads.shape[1]) != total:
        first, count = first * there // total, count * there // total
    values[write] = all_heads[:, first : first + count]


def alternating_heads(first: int, step: int, size: int, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    x = values[read]
    values[write] = x.view(*x.shape[:-1], -1, size).transpose(1, 2)[:, first::step]


def rotate(rope: str, read: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    values[write] = p.rotary[rope].rotate(values[read])


def attend(query: int, key: int, value: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    values[write] = m.attend(values[query], values[key], values[value], p)


def attend_apart(terms: tuple[str, ...], query: int, key: int, value: int, *rest: Any) -> None:
    """Attention that weighs content and distance apart; `terms`: whose heads the distances have."""
    *slots, write, m, values, p = rest
    distances = {f"distance_{term}": values[slot] for term, slot in zip(terms, slots, strict=True)}
    values[write] = m.attend(values[query], values[key], values[value], p, **distances)


def cross_attend(query: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    values[write] = m.attend_source(values[query], p)


def activate(how: str, path: Path | None, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = ACTIVATIONS[how][1](values[read]) if path is None else part(m, path)(values[read])


def gate(act: Path, gate_path: Path, up: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    x = values[read]
    values[write] = part(m, act)(part(m, gate_path)(x)) * part(m, up)(x)


def fused_gate(act: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    first, second = values[read].chunk(2, -1)
    values[write] = part(m, act)(first) * second


def add(first: int, second: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[first] + values[second]


def scale(factor: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read] * factor


def dropout(path: Path, rate: float, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = part(m, path)(values[read]) if path else F.dropout(values[read], rate, m.training)


def position(path: Path, first: int, read: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    values[write] = values[read] + part(m, path)(p.positions + first if first else p.positions)


def token_type(path: Path, read: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    values[write] = values[read] + part(m, path)(p.segments)


def sinusoid(read: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    x = values[read]
    values[write] = x + sinusoidal_positions(p.positions, x.shape[-1], x.dtype)


# What every block of a stack reads: put into the pass before its first one


def with_distance_biases(path: Path, max_distance: int, bidirectional: bool, m: Any, p: ForwardPass) -> ForwardPass:
    """A bias of each head for each distance, added to the scores."""
    table = part(m, path)
    distances = p.mask.distances()[:, 0]  # (1 or batch, length, keys)
    numbers = relative_buckets(distances, table.num_embeddings, max_distance, bidirectional)
    return replace(p, mask=p.mask.with_bias(table(numbers).permute(0, 3, 1, 2)))


def with_distance_vectors(path: Path, norm: Path | None, distances: DistanceBuckets, m: Any, p: ForwardPass) -> ForwardPass:
    """A vector for each bucket of distances."""
    vectors: Tensor = part(m, path).weight
    furthest = distances.max_distance
    places = (-p.mask.distances()).clamp(-furthest, furthest) + furthest
    numbers = torch.from_numpy(distances.numbers()).to(vectors.device, torch.long)[places]
    return replace(p, distances=DistanceVectors(vectors if norm is None else part(m, norm)(vectors), numbers))


def distance_vectors(path: Path, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    """The vectors of distances as an attention reads them."""
    assert p.distances is not None
    values[write] = part(m, path)(p.distances.vectors[None])
