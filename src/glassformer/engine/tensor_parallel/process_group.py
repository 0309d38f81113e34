"""A group of processes that add tensors up: gloo between processes of the CPU, NCCL between GPUs.

It is no default group of `torch.distributed`, of which a process has only one: models that are split do not get in each
other's way, nor in that of a program that uses the default group itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from glassformer.ground.errors import ExecutorError
from glassformer.ops.split import Split

LOOPBACK = "127.0.0.1"  # nobody else's packets: all ranks are on one machine
START_TIMEOUT = timedelta(minutes=5)  # for all ranks to have started
WATCHDOG_DELAY = 600.0  # seconds after which NCCL ends a process that waits in vain; rank 0 raises an error before that


@dataclass(frozen=True)
class ProcessGroup:
    """One rank's end of a group."""

    rank: int
    ranks: int
    device: torch.device  # of this rank's tensors
    backend: Any

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, in place of this one's where that is possible."""
        tensor = tensor.contiguous()
        if tensor.numel():
            self.backend.allreduce([tensor]).wait()
        return tensor

    def gather(self, part: Tensor, split: Split) -> Tensor:
        """The whole of a tensor of which each rank has a part: the same bits, since all that is added to them is zeros."""
        axis = split.axis % part.ndim
        whole = part.new_zeros(*part.shape[:axis], split.size, *part.shape[axis + 1 :])
        owned, first = split.owned(self.rank), 0
        for indices in split.parts[self.rank]:
            if indices in owned:
                whole.narrow(axis, indices.start, len(indices)).copy_(part.narrow(axis, first, len(indices)))
            first += len(indices)
        return self.sum(whole)

    def finish(self) -> None:
        """Wait for the sums under way, which on a GPU have only been queued."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def abort(self) -> None:
        """Give up the sums under way, so that nobody waits for them any longer."""
        if self.device.type == "cuda":
            self.backend.abort()


def join(folder: Path, rank: int, ranks: int, device: str, timeout: float) -> ProcessGroup:
    """Join a group whose ranks meet by a file in a folder that only this user can read.

    `timeout`: how many seconds a rank waits for the others in a sum before it gives up.
    """
    library: Any = torch.distributed  # its classes of backends have no types
    if device == "cuda" and not library.is_nccl_available():
        raise ExecutorError("this PyTorch has no NCCL, so GPUs cannot work together. Install one that is built with it.")
    store = library.FileStore(str(folder / "rendezvous"), ranks)
    store.set_timeout(START_TIMEOUT)
    store.set(f"rank {rank}", "here")
    store.wait([f"rank {other}" for other in range(ranks)])
    store.set_timeout(timedelta(seconds=timeout))
    if device == "cuda":
        torch.cuda.set_device(rank)
        options = library.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout + WATCHDOG_DELAY)
        backend = library.ProcessGroupNCCL(store, rank, ranks, options)
        return ProcessGroup(rank, ranks, torch.device("cuda", rank), backend)
    options = library.ProcessGroupGloo._Options()
    options._devices = [library.ProcessGroupGloo.create_device(hostname=LOOPBACK)]
    options._timeout = timedelta(seconds=timeout)
    backend = library.ProcessGroupGloo(store, rank, ranks, options)
    return ProcessGroup(rank, ranks, torch.device("cpu"), backend)
