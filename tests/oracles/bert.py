"""BERT with the head that guesses hidden tokens, written out. Shapes: x (length, hidden), heads (heads, length, size)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

Weights = Mapping[str, Tensor]


def scores(w: Weights, c: Any, ids: Tensor) -> Tensor:
    name = "bert.embeddings."
    tables = w[f"{name}position_embeddings.weight"][: len(ids)], w[f"{name}token_type_embeddings.weight"][0]
    x = norm(w, c, w[f"{name}word_embeddings.weight"][ids] + tables[0] + tables[1], name)
    for layer in range(c.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}."
        x = norm(w, c, x + attention(w, c, x, f"{name}attention."), f"{name}attention.output.")
        x = norm(w, c, x + mlp(w, x, name), f"{name}output.")
    name = "cls.predictions."
    h = norm(w, c, F.gelu(linear(w, x, f"{name}transform.dense")), f"{name}transform.")
    return linear(w, h, f"{name}decoder")


def norm(w: Weights, c: Any, x: Tensor, name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}LayerNorm.weight"], w[f"{name}LayerNorm.bias"], c.layer_norm_eps)


def linear(w: Weights, x: Tensor, name: str) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def attention(w: Weights, c: Any, x: Tensor, name: str) -> Tensor:
    query, key, value = (
        linear(w, x, f"{name}self.{part}").view(len(x), c.num_attention_heads, -1).transpose(0, 1)
        for part in ("query", "key", "value")
    )
    weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    return linear(w, (weights @ value).transpose(0, 1).reshape(len(x), -1), f"{name}output.dense")


def mlp(w: Weights, x: Tensor, name: str) -> Tensor:
    return linear(w, F.gelu(linear(w, x, f"{name}intermediate.dense")), f"{name}output.dense")
