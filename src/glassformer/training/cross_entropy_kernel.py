"""Cross-entropy of rows of scores on a GPU: each row's loss, and its slopes in place of its scores.

PyTorch goes over the scores eight times, most of them in float32. This kernel reads a row twice and writes it once, in the
dtype that it has: once for the largest score and the sum of the exponentials, together (Milakov and Gimelshein,
https://arxiv.org/abs/1805.02867), and once for the slopes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192  # scores that a program has at a time


def losses_and_slopes(scores: Tensor, targets: Tensor, smoothing: float, ignored: int) -> Tensor:
    """The loss of each row (rows,) of scores (rows, vocabulary), which become the loss's slopes by each of them.

    A row whose target is ignored has no loss, and slopes of zero.
    """
    rows, vocabulary = scores.shape
    losses = torch.empty(rows, dtype=torch.float32, device=scores.device)
    block = min(BLOCK, triton.next_power_of_2(vocabulary))
    _kernel[(rows,)](scores, targets, losses, vocabulary, smoothing, ignored, block, num_warps=16)
    return losses


@triton.jit
def _kernel(scores, targets, losses, vocabulary, smoothing, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    scores += row * vocabulary
    target = tl.load(targets + row)
    known = target != ignored
    largest, exponentials, score_sum = -float("inf"), 0.0, 0.0
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        here = column < vocabulary
        score = tl.load(scores + column, here, -float("inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(score, 0))
        exponentials = exponentials * tl.exp(largest - larger) + tl.sum(tl.exp(score - larger), 0)
        score_sum += tl.sum(tl.where(here, score, 0.0), 0)
        largest = larger
    log_sum = largest + tl.log(exponentials)
    picked = tl.load(scores + target, known, 0.0).to(tl.float32)
    loss = log_sum - (1.0 - smoothing) * picked - smoothing * score_sum / vocabulary
    tl.store(losses + row, tl.where(known, loss, 0.0))
    for start in range(0, vocabulary, BLOCK):
        column = start + tl.arange(0, BLOCK)
        here = column < vocabulary
        score = tl.load(scores + column, here, -float("inf")).to(tl.float32)
        slope = tl.exp(score - log_sum) - smoothing / vocabulary - tl.where(column == target, 1.0 - smoothing, 0.0)
        tl.store(scores + column, tl.where(known, slope, 0.0).to(scores.dtype.element_ty), here)
