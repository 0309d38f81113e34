"""Memory on the device in blocks of one shape, which rows share until they write: pages of keys and values, and states.

The first block belongs to nobody: what padding writes goes there. A pool grows when there is no free block; then its tensor
lies elsewhere.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from glassformer.engine.gpu.device import device_errors, free_memory
from glassformer.ground.errors import ExecutorError

PADDING = 0
FIRST_SHARE = 1 / 16  # of the free memory that a pool begins with


class BlockPool:
    """All blocks of one shape."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, what: str, least: int) -> None:
        """`what` they are for, for people; `least`: blocks that it begins with."""
        self.shape, self.dtype, self.device, self.what = shape, dtype, device, what
        self.block_bytes = torch.Size(shape).numel() * dtype.itemsize
        blocks = least
        if device.type == "cuda" and self.block_bytes:
            blocks = max(blocks, int(free_memory(device) * FIRST_SHARE) // self.block_bytes)
        self.tensor = self._zeros(blocks)
        self._users = [0] * blocks  # how often each block is held
        self._users[PADDING] = 1
        self._free = list(range(blocks - 1, PADDING, -1))
        self._abandoned: deque[list[int]] = deque()  # blocks of rows that were dropped without being closed

    def _zeros(self, blocks: int) -> Tensor:
        with device_errors(self.what):
            return torch.zeros(blocks, *self.shape, dtype=self.dtype, device=self.device)

    @property
    def used(self) -> int:
        """How many blocks are held."""
        self._collect()
        return len(self._users) - len(self._free) - 1

    def allocate(self) -> int:
        if not self._free:
            self._collect()
        if not self._free:
            self._grow()
        block = self._free.pop()
        self._users[block] = 1
        return block

    def copy(self, block: int) -> int:
        """Another block with what a shared one holds, which is released."""
        copied = self.allocate()
        self.tensor[copied] = self.tensor[block]
        self.release([block])
        return copied

    def is_shared(self, block: int) -> bool:
        return self._users[block] > 1

    def retain(self, blocks: list[int]) -> None:
        for block in blocks:
            self._users[block] += 1

    def release(self, blocks: list[int]) -> None:
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                self._free.append(block)

    def abandon(self, blocks: list[int]) -> None:
        """Release blocks from a finalizer, which may run in any thread and at any moment: so only later."""
        if blocks:
            self._abandoned.append(blocks)

    def _collect(self) -> None:
        while self._abandoned:
            self.release(self._abandoned.popleft())

    def _grow(self) -> None:
        """Twice as many blocks, or as many as there is memory for beside the old ones, which are copied."""
        blocks = len(self._users)
        more = blocks
        if self.device.type == "cuda" and self.block_bytes:
            more = min(more, (free_memory(self.device) * 9 // 10 - blocks * self.block_bytes) // self.block_bytes)
        if more < 1:
            raise ExecutorError(
                f"the GPU lacks memory for more {self.what} than those of {self._content(blocks)}. Close rows, feed fewer "
                "at a time, or use smaller weights."
            )
        grown = self._zeros(blocks + more)
        grown[:blocks] = self.tensor
        self.tensor = grown
        self._users += [0] * more
        self._free += range(blocks + more - 1, blocks - 1, -1)

    def _content(self, blocks: int) -> str:
        """What so many blocks hold, for people."""
        raise NotImplementedError
