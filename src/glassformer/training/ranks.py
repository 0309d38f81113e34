"""The processes of a training: one, or several that torchrun has started, each with a part of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def wait(self) -> None:
        """Until all processes have come here."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def joined_ranks(device: str | None = None) -> Iterator[Ranks]:
    """This process's place among those that torchrun has started; alone where it has not."""
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda":
        own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(own)
    else:
        own = torch.device(kind)
    if count == 1:
        yield Ranks(device=own)
        return
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo")
    try:
        yield Ranks(rank, count, own)
    finally:
        dist.destroy_process_group()
