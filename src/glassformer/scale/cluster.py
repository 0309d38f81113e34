"""A Ray cluster: how to reach it, and how its machines are divided among workers.

A worker has one GPU, or a group of cores of one machine, and computes with as many threads: more threads than cores would
make all of them slower.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from glassformer.ground.errors import SettingError, needed_for

LOCAL, AUTO = "local", "auto"
OBJECT_STORE_BYTES = 128 * 2**20  # of a cluster of our own: rows and answers are small
CONNECT_SECONDS = 5.0
NAMESPACE = "glassformer"


@dataclass(frozen=True)
class ClusterMachine:
    """What a machine of the cluster has."""

    cores: int
    gpus: int = 0


@dataclass(frozen=True)
class Allotment:
    """How many workers there are, and what each of them has."""

    workers: int
    cores: int
    gpus: int = 0

    @property
    def options(self) -> dict[str, int]:
        """As Ray's actors take them."""
        return {"num_cpus": self.cores, "num_gpus": self.gpus}


def import_ray() -> Any:
    """Ray, which reports no usage statistics to anybody unless it was told to."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with needed_for("a cluster"):
        import ray
    return ray


@contextmanager
def connect(address: str | None) -> Iterator[Any]:
    """Ray, connected to a cluster: `local` starts one on this machine for as long as the context lasts.

    With None, or where this process is connected already, that connection is used and left open.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": NAMESPACE}
    if address in (None, LOCAL):
        local = {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
        ray.init(address=LOCAL, **local, **quiet)
    else:
        assert address is not None
        check_address(address)
        try:
            ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise unreachable(address) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Refuse what is no address of a cluster, or one where nothing listens: Ray itself would wait for a minute."""
    if address == AUTO:
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not host or not port.isdecimal():
        raise SettingError(
            f"{address!r} is no address of a Ray cluster. Pass HOST:PORT, such as 10.0.0.1:6379, auto or local."
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise unreachable(address) from error


def unreachable(address: str) -> SettingError:
    place = "on this machine" if address == AUTO else f"at {address}"
    return SettingError(f"no Ray cluster answers {place}. Start one with `ray start --head`, or pass --ray local.")


def machines(ray: Any) -> list[ClusterMachine]:
    """The machines of the cluster that can have workers."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    every = [ClusterMachine(int(each.get("CPU", 0)), int(each.get("GPU", 0))) for each in resources]
    return [machine for machine in every if machine.cores]


def allot(available: Sequence[ClusterMachine], workers: int | None, gpus: bool | None = None) -> Allotment:
    """Divide machines among workers; by default one for each GPU, or else one for each machine.

    Args:
        gpus: whether workers have a GPU; by default they do where there is one.

    >>> allot([Machine(8), Machine(16)], None), allot([Machine(8), Machine(16)], 3)
    (Allotment(workers=2, cores=8, gpus=0), Allotment(workers=3, cores=8, gpus=0))
    """
    with_gpus = [machine for machine in available if machine.gpus]
    if gpus and not with_gpus:
        raise SettingError("no machine of the cluster has a GPU. Add one, or use the executor cpu or plain.")
    if with_gpus and gpus is not False:
        room = sum(machine.gpus for machine in with_gpus)
        _check_room(room, workers, "GPUs")
        return Allotment(workers or room, max(1, min(machine.cores // machine.gpus for machine in with_gpus)), 1)
    _check_room(sum(machine.cores for machine in available), workers, "cores")
    workers = workers or len(available)
    cores = max(machine.cores for machine in available)
    while sum(machine.cores // cores for machine in available) < workers:
        cores -= 1
    return Allotment(workers, cores)


def _check_room(room: int, workers: int | None, what: str) -> None:
    if not room:
        raise SettingError(f"the cluster has no {what} for workers. Add a machine with `ray start --address=HOST:PORT`.")
    if workers is not None and workers > room:
        raise SettingError(f"{workers} workers need as many {what}; the cluster has {room}. Pass fewer, or add machines.")


def use_assigned_cores(ray: Any) -> None:
    """In a worker: compute with as many threads as it has cores, unless its machine is set up otherwise.

    To be called before a model is loaded. PyTorch's number is set by Ray itself.
    """
    context = ray.get_runtime_context()
    cores = 0 if context.get_actor_id() is None else int(context.get_assigned_resources().get("CPU", 0))
    if cores:
        os.environ.setdefault("GLASS_THREADS", str(cores))
