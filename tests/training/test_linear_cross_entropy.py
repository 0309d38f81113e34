"""The chunked loss, beside the whole one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tests.engine.gpu.triton_interpreter  # noqa: F401  # isort: skip

from glassformer.training import cross_entropy_kernel
from glassformer.training import linear_cross_entropy as module
from glassformer.training.linear_cross_entropy import linear_cross_entropy


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("biased", [False, True])
def test_loss_and_gradients_are_those_of_all_scores_at_once(
    smoothing: float, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.CHUNK_BYTES, "cpu", 4 * 30 * 17)  # chunks of 17 tokens
    draw = torch.Generator().manual_seed(0)
    states, weight = (torch.randn(shape, generator=draw) for shape in ((50, 8), (30, 8)))
    bias = torch.randn(30, generator=draw) if biased else None
    targets = torch.randint(30, (50,), generator=draw)
    targets[::7] = -100
    results = []
    for loss in (linear_cross_entropy, whole):
        leaves = [None if leaf is None else leaf.clone().requires_grad_() for leaf in (states, weight, bias)]
        total = loss(*leaves, targets, smoothing)
        (3 * total).backward()
        results.append([total, *(leaf.grad for leaf in leaves if leaf is not None)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def whole(states, weight, bias, targets, smoothing):  # type: ignore[no-untyped-def]
    logits = F.linear(states, weight, bias)
    return F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum", label_smoothing=smoothing)


@torch.no_grad()
def test_without_gradients_only_the_loss_is_computed() -> None:
    states, weight, targets = torch.randn(9, 4), torch.randn(11, 4), torch.arange(9)
    torch.testing.assert_close(
        linear_cross_entropy(states, weight, None, targets), whole(states, weight, None, targets, 0.0)
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_gives_the_same_losses_and_slopes(
    dtype: torch.dtype, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Triton's interpreter, where there is no GPU; rows of several blocks, the last of them not full."""
    monkeypatch.setattr(cross_entropy_kernel, "BLOCK", 16)
    scores, targets = torch.randn(5, 39).mul(8).to(dtype), torch.tensor([0, 38, -100, 16, 5])
    expected, slopes = module.losses_and_slopes(scores.clone(), targets, smoothing)
    losses = cross_entropy_kernel.losses_and_slopes(scores, targets, smoothing, -100)
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores, slopes, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)
    assert not scores[2].any()
    assert losses[2] == 0
