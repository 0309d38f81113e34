"""Bytes of checkpoint files on their way to the device.

They are read from the file, not through its mapping, by several threads into pinned memory, from where the device copies
them by itself; meanwhile the next piece is read. A file that is cut short or changed on the way is an error, where a mapping
would end the process.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from glassformer.checkpoint.stored_tensors import StoredTensor
from glassformer.ground.ownership import NotCopied

PIECE = 1 << 25  # bytes that are copied at once
READERS = 4  # threads that read a piece together
LEAST_PART = 1 << 20  # bytes that are worth a thread
PIECES = 2  # in pinned memory: one is copied, another is read


class Upload(NotCopied):
    """The way to one device; its pinned memory and its threads are given back when it is dropped."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pieces: list[
            tuple[Tensor, Any]
        ] = []  # pinned memory, and the event after which it is free; the next one first
        self._readers: ThreadPoolExecutor | None = None

    def copy(self, tensor: StoredTensor, target: Tensor) -> None:
        """Copy a tensor's bytes to a contiguous tensor on the device."""
        assert target.is_contiguous()
        flat = target.view(-1).view(torch.uint8)
        assert flat.numel() == tensor.size
        for begin in range(0, tensor.size, PIECE):
            count = min(PIECE, tensor.size - begin)
            piece, copied = self._free_piece(count)
            self._read(tensor, begin, piece[:count])
            flat[begin : begin + count].copy_(piece[:count], non_blocking=True)
            if copied is not None:
                copied.record()

    def _free_piece(self, size: int) -> tuple[Tensor, Any]:
        """Memory of at least so many bytes that nobody copies from any more."""
        on_gpu = self.device.type == "cuda"
        piece = self._pieces.pop(0) if len(self._pieces) == PIECES else None
        if piece is not None and piece[1] is not None:
            piece[1].synchronize()
        if piece is None or piece[0].numel() < size:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
            piece = memory, torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._pieces.append(piece)
        return piece

    def _read(self, tensor: StoredTensor, begin: int, piece: Tensor) -> None:
        target, step = piece.numpy(), max(LEAST_PART, -(-piece.numel() // READERS))
        starts = range(0, target.size, step)
        if len(starts) == 1:
            tensor.file.read_into(target, tensor.offset + begin)
            return
        if self._readers is None:
            self._readers = ThreadPoolExecutor(READERS, "glassformer-read")
        parts = [
            self._readers.submit(tensor.file.read_into, target[at : at + step], tensor.offset + begin + at) for at in starts
        ]
        for part in parts:
            part.result()
