"""Ops: the equations that a blueprint is made of.

Each `Op` says what is computed (one of a closed list of kinds), from which earlier results, with which weights, and which
shape and sites come out.

Shapes: whole numbers, or the names `batch`, `length` (tokens of this pass), `keys` (tokens attended to) and `source` (the
encoder's tokens).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Dim: TypeAlias = int | str
Shape: TypeAlias = tuple[Dim, ...]
OpKind: TypeAlias = Literal[
    "embed",  # ids → vectors, by table; options: scale
    "position",  # add a vector per position or token type, or give a bias or a vector per distance; options: how, first
    "norm",  # RMS or layer norm over the last axis; options: eps, how (rms, layer), offset
    "linear",  # (x · Wᵀ (+ b)) · scale; options: columns (the weight is transposed), scale
    "heads",  # split into heads, (batch, heads, length, head_size): after a linear, or some of one's; options: first, step
    "rotate",  # RoPE; options: rope
    "attend",  # softmax(q · kᵀ · scale (+ bias), masked) · v, heads joined; options: causal, window, scale, softcap, cross;
    # with `distances`, the buckets b of tokens' distances: softmax((q · kᵀ + q · key(b) + k · query(b)) · scale) · v
    "activate",  # an activation; options: how
    "gate",  # act(x · Wgᵀ) * (x · Wuᵀ); without weights, act(x) * y of two results, or of the halves of one; options: how
    "route",  # router scores → each expert's share, 0 for those not chosen; options: chosen, normalized
    "expert_gate",  # a gate of each chosen expert, side by side; options: how, experts, chosen, limit, offset
    "expert_linear",  # a linear of each chosen expert with its neurons, times its share, summed; options: experts, chosen
    "add",  # the residual sum; options: adapter (that of an adapter's update and the product beside it)
    "sum",  # over all ranks, each of which has a part of it: only where a model is split
    "identity",  # the same value at one more site
    "pool",  # one vector per text: its first or last token's, its last end token's, or the mean; options: how
    "scores",  # the head: vectors → scores; options: scale, softcap
]
EXPERT_OPS: tuple[OpKind, ...] = ("expert_gate", "expert_linear")  # whose weights are those of all experts, one by one


@dataclass(frozen=True, slots=True)
class Weight:
    name: str  # as in the checkpoint
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    kind: OpKind
    module: str  # the module that does it, or the nearest one around it
    inputs: tuple[int, ...]  # indices of the ops whose results it takes; none: the token ids
    shape: Shape
    weights: tuple[Weight, ...] = ()
    block: int | None = None
    stack: str = ""  # "encoder." in the encoder of an encoder-decoder
    site: str | None = None  # of its result
    inner_sites: Mapping[str, Shape] = field(default_factory=dict)  # of values on the way to the result
    options: Mapping[str, Any] = field(default_factory=dict)
