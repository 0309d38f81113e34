"""Fingerprints of what lies in a device's memory, as fast as it can be read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SPAN = 2**18  # bytes that one number stands for
ALIGNMENT = 16  # bytes: addresses and sizes that are multiples of it are read eight words at a time
BLOCK = 2048  # words of a step of the loop
MULTIPLIER = tl.constexpr(0x01000193)  # odd, so that no word is lost (FNV's)


def fingerprint(addresses: Tensor, counts: Tensor, aligned: bool) -> Tensor:
    """A number for each span of memory: int64 addresses, and how many 16-bit words from there on.

    If one word of a span changes, its number changes; if several do, it stays the same with a chance of one in 2³².
    `aligned`: all addresses and sizes in bytes are multiples of ALIGNMENT.
    """
    numbers = torch.empty(len(addresses), dtype=torch.int64, device=addresses.device)
    if len(addresses):
        fingerprint_kernel[(len(addresses),)](addresses, counts, numbers, ALIGNED=aligned, BLOCK=BLOCK)
    return numbers


@triton.jit
def fingerprint_kernel(addresses, counts, numbers, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    span = tl.program_id(0)
    words = tl.load(addresses + span).to(tl.pointer_type(tl.int16))
    count = tl.load(counts + span).to(tl.int32)
    if ALIGNED:
        words = tl.multiple_of(words, 16)
        count = tl.multiple_of(count, 8)
    lane = tl.arange(0, BLOCK)
    totals = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, count, BLOCK):
        word = tl.load(words + first + lane, mask=first + lane < count, other=0)
        totals = (totals ^ word.to(tl.int32)) * MULTIPLIER
    tl.store(numbers + span, tl.sum((totals * (2 * lane + 1)).to(tl.int64), axis=0))
