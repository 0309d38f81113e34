"""A model that is split among processes: each keeps a part of every weight, and has whole blocks only while it runs them.

This is torch's fully_shard (FSDP2, https://arxiv.org/abs/2304.11277). All processes must run the same number of passes.
Its modules take seconds to import, so they are imported where a model is split; a tensor that is split has `full_tensor`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from glassformer.ground.errors import SettingError, spell
from glassformer.torch.container import Block
from glassformer.training.objectives.objective import ExampleBatch
from glassformer.training.settings import TrainingSettings


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
        place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    else:
        place = torch.device(kind)
    if count == 1:
        yield Ranks(device=place)
        return
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield Ranks(rank, count, place)
    finally:
        dist.destroy_process_group()


def shard_model(module: Any, settings: TrainingSettings, ranks: Ranks) -> None:
    """Split a model's weights, block by block; `module`: what is called to compute a loss."""
    if ranks.count == 1:
        raise SettingError(
            f"{spell('shard')} splits a model among processes, and there is one. Start several with torchrun, or leave it "
            "out."
        )
    if settings.batch_size % ranks.count:
        raise SettingError(
            f"{spell('batch_size', settings.batch_size)} is no multiple of {ranks.count}, the number of processes, which "
            f"{spell('shard')} needs. Give one."
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.count,))
    for part in module.modules():
        if isinstance(part, Block):
            fully_shard(part, mesh=mesh)
    fully_shard(module, mesh=mesh)


def release_whole(module: Any) -> None:
    """Keep only parts again: torch keeps what is outside of blocks whole after a pass, for the gradients to come."""
    module.reshard()


def whole(tensor: Any) -> Tensor:
    """A tensor whose parts may be with several processes, which all call this."""
    gathered: Tensor = tensor.full_tensor() if is_split(tensor) else tensor
    return gathered


def is_split(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def whole_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """A split model's weights by name; None for one that is not split. All processes call this."""
    parameters = dict(model.named_parameters())
    if not any(map(is_split, parameters.values())):
        return None
    return {name: whole(parameter.detach()) for name, parameter in parameters.items()}


def like(parameter: Any, value: Tensor) -> Tensor:
    """This process's part of a value, where a parameter is split; else all of it, on the parameter's device."""
    value = value.to(parameter.device)
    if not is_split(parameter):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def dealt(batches: Iterable[ExampleBatch], ranks: Ranks) -> Iterator[tuple[ExampleBatch, bool]]:
    """One batch of each round for this process, and whether it counts: in the last round some process another's in vain."""
    hand: list[ExampleBatch] = []
    for batch in batches:
        hand.append(batch)
        if len(hand) == ranks.count:
            yield hand[ranks.rank], True
            hand = []
    if hand:
        yield hand[min(ranks.rank, len(hand) - 1)], ranks.rank < len(hand)
