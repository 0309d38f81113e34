"""One cluster of two machines, which are processes of this one, for all tests here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # the extra `ray` has nothing for it

CORES = 2  # of each machine
QUIET = {"include_dashboard": False, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="package")
def cluster() -> Iterator[str]:
    """The address of a cluster that this process is connected to."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES, **QUIET})
    try:
        cluster.add_node(num_cpus=CORES, **QUIET)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", namespace="glassformer")
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()
