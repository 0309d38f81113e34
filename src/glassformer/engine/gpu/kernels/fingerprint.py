"""Fingerprints of what lies in a device's memory, and whether a live model's parameters have changed.

Weights can change in ways that torch does not count (`parameter.data.mul_(2)`), so nothing but their bytes can say that they
have not: a fingerprint of all of them takes about as long as the device needs to read them once.
"""

from __future__ import annotations

from collections.abc import Mapping

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


class ParameterWatch:
    """Notices when tensors of a device change: by their addresses, or by a fingerprint of their bytes."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._places = _places(tensors)
        device = next(iter(tensors.values())).device
        spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # aligned or not: addresses, 16-bit words
        for address, size in dict.fromkeys(self._places.values()):
            body = size // ALIGNMENT * ALIGNMENT if address % ALIGNMENT == 0 else 0
            for aligned, begin, end in ((True, 0, body), (False, body, size)):
                parts = ((start, min(SPAN, end - start)) for start in range(begin, end, SPAN))
                spans[aligned] += [(address + start, length // 2) for start, length in parts]
        self._spans = {
            aligned: torch.tensor(rows, dtype=torch.int64, device=device).view(-1, 2).T.contiguous()
            for aligned, rows in spans.items()
        }
        self._fingerprint = self._read()

    def unchanged(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are the same tensors at the same addresses, with the same bytes."""
        return _places(tensors) == self._places and torch.equal(self._read(), self._fingerprint)

    def _read(self) -> Tensor:
        return torch.cat([fingerprint(spans[0], spans[1], aligned) for aligned, spans in self._spans.items()])


def _places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    return {name: (tensor.data_ptr(), tensor.nbytes) for name, tensor in tensors.items()}


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
