"""GPT-2, written out. Shapes: x (length, hidden), heads (heads, length, size)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def scores(w: Weights, c: Any, ids: Tensor) -> Tensor:
    x = w["transformer.wte.weight"][ids] + w["transformer.wpe.weight"][: len(ids)]
    for layer in range(c.num_hidden_layers):
        name = f"transformer.h.{layer}."
        x = x + attention(w, c, norm(w, c, x, f"{name}ln_1"), f"{name}attn.")
        x = x + mlp(w, norm(w, c, x, f"{name}ln_2"), f"{name}mlp.")
    return norm(w, c, x, "transformer.ln_f") @ w["lm_head.weight"].T


def norm(w: Weights, c: Any, x: Tensor, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], c.layer_norm_epsilon)


def projected(w: Weights, x: Tensor, name: str) -> Tensor:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def attention(w: Weights, c: Any, x: Tensor, name: str) -> Tensor:
    query, key, value = (
        part.view(len(x), c.num_attention_heads, -1).transpose(0, 1)
        for part in projected(w, x, f"{name}c_attn").chunk(3, -1)
    )
    hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
    weights = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    return projected(w, (weights @ value).transpose(0, 1).reshape(len(x), -1), f"{name}c_proj")


def mlp(w: Weights, x: Tensor, name: str) -> Tensor:
    return projected(w, F.gelu(projected(w, x, f"{name}c_fc"), approximate="tanh"), f"{name}c_proj")
