"""The loss of a language model's last layer, without ever having all of its scores at once.

The scores of a batch are by far its largest tensor: tokens × vocabulary. Here they are made a chunk of tokens at a time, and
the chunk's gradients are taken right then, while it is in the cache. The result and the gradients are those of
`cross_entropy(linear(states))`; so are the products that are computed.

Shapes: states (tokens, hidden); weight (vocabulary, hidden); targets (tokens,).
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.torch.base import IGNORED

CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 2 << 30}  # of a chunk's scores in float32: what a cache holds; what is to spare


def linear_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """The sum of the losses of all targets but the ignored ones, in float32 at least."""
    if torch.is_autocast_enabled(states.device.type):
        dtype = torch.get_autocast_dtype(states.device.type)
        states, weight, bias = states.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    rows = max(16, CHUNK_BYTES.get(states.device.type, CHUNK_BYTES["cuda"]) // (4 * len(weight)))
    with torch.autocast(states.device.type, enabled=False):
        result: Tensor = _LinearCrossEntropy.apply(states, weight, bias, targets, label_smoothing, rows)  # type: ignore[no-untyped-call]
    return result


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, rows: int
    ) -> Tensor:
        dtype = torch.promote_types(states.dtype, torch.float32)
        total = torch.zeros((), dtype=dtype, device=states.device)
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]  # a frozen head needs none of its own
        of_states = torch.empty_like(states) if needs_states else None
        of_weight = torch.zeros(weight.shape, dtype=dtype, device=weight.device) if needs_weight else None
        of_bias = torch.zeros(bias.shape, dtype=dtype, device=bias.device) if needs_bias and bias is not None else None
        for x, target, place in zip(
            torch.split(states, rows), torch.split(targets, rows), range(0, len(states), rows), strict=True
        ):
            scores = F.linear(x, weight, bias)
            if of_states is None and of_weight is None and of_bias is None:
                total += F.cross_entropy(
                    scores.to(dtype), target, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
                )
                continue
            losses, slope = losses_and_slopes(scores, target, smoothing)
            total += losses.sum()
            if of_states is not None:
                of_states[place : place + len(x)] = slope @ weight
            if of_weight is not None and of_weight.dtype == states.dtype:
                of_weight.addmm_(slope.T, x)
            elif of_weight is not None:
                of_weight += slope.T @ x
            if of_bias is not None:
                of_bias += slope.sum(0, dtype=dtype)
        ctx.save_for_backward(of_states, of_weight, of_bias)
        ctx.dtypes = weight.dtype, None if bias is None else bias.dtype
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        of_states, of_weight, of_bias = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        gradients = (
            None if of_states is None else of_states * scale.to(of_states.dtype),
            None if of_weight is None else (of_weight * scale).to(weight_dtype),
            None if of_bias is None else (of_bias * scale).to(bias_dtype),
        )
        return (*gradients, None, None, None)


def losses_and_slopes(scores: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss of each row of scores, and its slopes by them: the probabilities, less what was to be there.

    The scores' memory is used for the slopes.
    """
    if scores.is_cuda and scores.dtype is not torch.float64 and _has_triton():
        from glassformer.training import cross_entropy_kernel

        return cross_entropy_kernel.losses_and_slopes(scores, targets, smoothing, IGNORED), scores
    known = targets != IGNORED
    column = targets.where(known, 0)[:, None]
    logs = scores.to(torch.promote_types(scores.dtype, torch.float32))
    logs -= logs.logsumexp(-1, keepdim=True)
    picked = logs.gather(-1, column)[:, 0]
    losses = (smoothing - 1) * picked - smoothing * logs.mean(-1) if smoothing else -picked
    slopes = logs.exp_()
    if smoothing:
        slopes -= smoothing / scores.shape[-1]
    slopes.scatter_add_(-1, column, torch.full_like(column, smoothing - 1, dtype=slopes.dtype))
    return losses * known, (slopes * known[:, None]).to(scores.dtype)


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
