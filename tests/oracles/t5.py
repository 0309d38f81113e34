"""T5, written out. Shapes: x (length, hidden), states (source, hidden), heads (heads, length, size)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def scores(w: Weights, c: Any, source: Tensor, target: Tensor) -> Tensor:
    states = stack(w, c, source, "encoder", c.num_encoder_layers)
    x = stack(w, c, target, "decoder", c.num_hidden_layers, states)
    return x * c.hidden_size**-0.5 @ w["shared.weight"].T


def stack(w: Weights, c: Any, ids: Tensor, name: str, layers: int, states: Tensor | None = None) -> Tensor:
    x = w["shared.weight"][ids]
    table = w[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    bias = distance_bias(table, c, len(ids), both_ways=states is None)
    for layer in range(layers):
        block = f"{name}.block.{layer}.layer."
        h = norm(w, c, x, f"{block}0.layer_norm")
        x = x + attention(w, c, h, h, f"{block}0.SelfAttention.", bias)
        if states is not None:
            x = x + attention(w, c, norm(w, c, x, f"{block}1.layer_norm"), states, f"{block}1.EncDecAttention.")
        last = f"{block}{1 if states is None else 2}."
        x = x + mlp(w, norm(w, c, x, f"{last}layer_norm"), f"{last}DenseReluDense.")
    return norm(w, c, x, f"{name}.final_layer_norm")


def norm(w: Weights, c: Any, x: Tensor, name: str) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + c.layer_norm_epsilon).sqrt() * w[f"{name}.weight"]


def attention(w: Weights, c: Any, x: Tensor, seen: Tensor, name: str, bias: Tensor | None = None) -> Tensor:
    query, key, value = (
        (read @ w[f"{name}{part}.weight"].T).view(len(read), c.num_attention_heads, -1).transpose(0, 1)
        for part, read in zip("qkv", (x, seen, seen), strict=True)
    )
    logits = query @ key.mT if bias is None else query @ key.mT + bias
    return (logits.softmax(-1) @ value).transpose(0, 1).reshape(len(x), -1) @ w[f"{name}o.weight"].T


def distance_bias(table: Tensor, c: Any, length: int, both_ways: bool) -> Tensor:
    """What each head adds for each distance, (heads, length, length); minus infinity for what must not be seen."""
    bias = torch.full((table.shape[1], length, length), -torch.inf)
    for query in range(length):
        for key in range(length if both_ways else query + 1):
            bias[:, query, key] = table[bucket(key - query, len(table), c.relative_attention_max_distance, both_ways)]
    return bias


def bucket(distance: int, count: int, furthest: int, both_ways: bool) -> int:
    first = 0
    if both_ways:
        count //= 2
        first = count if distance > 0 else 0
    near, distance = count // 2, abs(distance)
    if distance < near:
        return first + distance
    grown = near + int(math.log(distance / near) / math.log(furthest / near) * (count - near))
    return first + min(grown, count - 1)


def mlp(w: Weights, x: Tensor, name: str) -> Tensor:
    return F.relu(x @ w[f"{name}wi.weight"].T) @ w[f"{name}wo.weight"].T
