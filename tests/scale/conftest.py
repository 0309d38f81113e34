"""One cluster of two machines, which are processes of this one, for all tests here."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest

from tests.patience import patience, wait_until

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # the extra `ray` has nothing for it

CORES = 2  # of each machine
# Told which ports its helpers have, a machine begins without them; otherwise it waits for each no longer than 15 seconds.
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
QUIET = {"include_dashboard": False, "object_store_memory": 80 * 2**20}


def free_ports(*names: str) -> dict[str, int]:
    """A port that nobody listens on for each name."""
    with ExitStack() as until_all_are_chosen:
        sockets = [until_all_are_chosen.enter_context(socket.create_server(("", 0))) for _ in names]
        return {name: one.getsockname()[1] for name, one in zip(names, sockets, strict=True)}


def wait_for_node(get_node: Callable[..., dict[str, Any]], address: str, name: str) -> dict[str, Any]:
    """What the cluster knows of a machine, as soon as it does; Ray itself asks for half a minute and no longer."""
    found: dict[str, Any] = {}

    def is_known() -> bool:
        with suppress(RuntimeError):
            found.update(get_node(address, name))
        return bool(found)

    wait_until(is_known)
    return found


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    """The address of a cluster that this process is connected to."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(services, "get_node", partial(wait_for_node, services.get_node))
            for _ in range(2):
                cluster.add_node(wait=False, num_cpus=CORES, **QUIET, **free_ports(*AGENT_PORTS))
        cluster.wait_for_nodes(patience(30))
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", namespace="glassformer")
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
