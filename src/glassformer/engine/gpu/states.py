"""The states of rows on the device: what layers that keep one have after a row's tokens, beside its keys and values.

A row's state is a block of a pool. A fork and a snapshot share it, and who writes next copies it.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from glassformer.engine.gpu.block_pool import BlockPool
from glassformer.ground.ownership import NotCopied

FIRST_STATES = 8  # of a pool, at least


class StatePool(BlockPool):
    """The states of all rows, and of their snapshots: (states, numbers)."""

    def __init__(self, size: int, device: torch.device) -> None:
        super().__init__((size,), torch.float32, device, what="states", least=FIRST_STATES)

    def _content(self, blocks: int) -> str:
        return f"{blocks - 1} rows and snapshots"

    def zeros(self) -> DeviceState:
        """That of a row without tokens."""
        state = DeviceState(self)
        state.values.zero_()
        return state


class DeviceState(NotCopied):
    """One row's state; its block is given back when nobody has it any more."""

    def __init__(self, pool: StatePool) -> None:
        self.pool = pool
        self.place = pool.allocate()
        weakref.finalize(self, pool.abandon, [self.place]).atexit = False

    @property
    def values(self) -> Tensor:
        return self.pool.tensor[self.place]

    def copy(self) -> DeviceState:
        copied = DeviceState(self.pool)
        copied.values.copy_(self.values)
        return copied
