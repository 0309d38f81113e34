"""Llama, written out: a function from weights and ids to scores. Shapes: x (length, hidden), heads (heads, length, size)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def scores(w: Weights, c: Any, ids: Tensor) -> Tensor:
    x = w["model.embed_tokens.weight"][ids]
    for layer in range(c.num_hidden_layers):
        name = f"model.layers.{layer}."
        x = x + attention(w, c, norm(x, w[f"{name}input_layernorm.weight"], c.rms_norm_eps), f"{name}self_attn.")
        x = x + mlp(w, norm(x, w[f"{name}post_attention_layernorm.weight"], c.rms_norm_eps), f"{name}mlp.")
    return norm(x, w["model.norm.weight"], c.rms_norm_eps) @ w["lm_head.weight"].T


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def attention(w: Weights, c: Any, x: Tensor, name: str) -> Tensor:
    query, key, value = (
        (x @ w[f"{name}{part}_proj.weight"].T).view(len(x), -1, c.head_dim).transpose(0, 1) for part in "qkv"
    )
    query, key = rotated(query, c), rotated(key, c)
    group = c.num_attention_heads // c.num_key_value_heads
    key, value = key.repeat_interleave(group, 0), value.repeat_interleave(group, 0)
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    weights = (query @ key.mT / c.head_dim**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    return (weights @ value).transpose(0, 1).reshape(len(x), -1) @ w[f"{name}o_proj.weight"].T


def rotated(heads: Tensor, c: Any) -> Tensor:
    """Each pair of numbers, half a head apart, turned by an angle that grows with the position."""
    half = c.head_dim // 2
    angles = torch.arange(heads.shape[1])[:, None] * c.rope.theta ** -(torch.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


def mlp(w: Weights, x: Tensor, name: str) -> Tensor:
    gate, up, down = (w[f"{name}{part}_proj.weight"].T for part in ("gate", "up", "down"))
    return (F.silu(x @ gate) * (x @ up)) @ down
