"""Addresses of clusters, how machines are divided among workers, and how rows are divided into groups."""

from __future__ import annotations

import random
import socket
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.ground.errors import SettingError
from glassformer.jobs.formats.row_format import InputRow
from glassformer.scale.cluster import Allotment, ClusterMachine, allot, check_address, connect
from glassformer.scale.job import MAX_ROW_LOSSES, MAX_ROWS, RowGroups


@pytest.mark.parametrize("address", ["nonsense", "ray://host:10001", ":6379", "host:", "host:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(SettingError, match="Ray cluster"):
        check_address(address)


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            pytest.raises(SettingError, match=rf"^no Ray cluster answers at {address}. Start one with `ray start --head`"),
            connect(address),
        ):
            pass


@pytest.mark.parametrize(
    ("machines", "workers", "gpus", "expected"),
    [
        ([ClusterMachine(8)], None, None, Allotment(1, 8)),
        ([ClusterMachine(8)], 3, None, Allotment(3, 2)),
        ([ClusterMachine(8), ClusterMachine(2)], 5, None, Allotment(5, 2)),
        ([ClusterMachine(3), ClusterMachine(3)], 3, None, Allotment(3, 1)),
        ([ClusterMachine(32, 8), ClusterMachine(16)], None, None, Allotment(8, 4, 1)),
        ([ClusterMachine(32, 8), ClusterMachine(16, 2)], 3, None, Allotment(3, 4, 1)),
        ([ClusterMachine(32, 8), ClusterMachine(16)], None, False, Allotment(2, 16)),
        ([ClusterMachine(2, 8)], None, True, Allotment(8, 1, 1)),
    ],
)
def test_machines_are_divided_among_workers(
    machines: list[ClusterMachine], workers: int | None, gpus: bool | None, expected: Allotment
) -> None:
    assert allot(machines, workers, gpus) == expected


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=6), st.integers(1, 40))
def test_workers_fit_and_could_not_be_larger(cores: list[int], workers: int) -> None:
    machines = [ClusterMachine(number) for number in cores]
    if workers > sum(cores):
        with pytest.raises(SettingError, match="workers need as many cores; the cluster has"):
            allot(machines, workers)
        return
    each = allot(machines, workers).cores
    assert sum(number // each for number in cores) >= workers
    assert sum(number // (each + 1) for number in cores) < workers


@pytest.mark.parametrize(
    ("machines", "workers", "gpus", "message"),
    [
        ([], None, None, "the cluster has no cores for workers. Add a machine with `ray start --address=HOST:PORT`."),
        ([ClusterMachine(8, 2)], 3, None, "3 workers need as many GPUs; the cluster has 2. Pass fewer, or add machines."),
        ([ClusterMachine(8)], None, True, "no machine of the cluster has a GPU. Add one, or use the executor cpu or plain."),
    ],
)
def test_a_cluster_without_room_is_refused(machines: Any, workers: Any, gpus: Any, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        allot(machines, workers, gpus)
    assert str(caught.value) == message


# Groups ----------------------------------------------------------------------------------------------------------------


def groups_of(total: int, finished: Any = (), **shape: int) -> RowGroups:
    rows = (InputRow(number, number, None) for number in range(total))
    return RowGroups(rows, finished, total=total, **{"workers": 4, "chunk": 1, "least": 8, **shape})


@settings(deadline=None)
@given(
    total=st.integers(0, 1000), workers=st.integers(1, 50), chunk=st.sampled_from([1, 128]), least=st.integers(1, 40),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_groups_have_every_unfinished_row_whatever_comes_back(
    total: int, workers: int, chunk: int, least: int, seed: int
) -> None:
    draw = random.Random(seed)
    finished = {number for number in range(total) if draw.random() < 0.3}
    begun_with = set(finished)
    groups = groups_of(total, finished, workers=workers, chunk=chunk, least=least)
    answered: list[int] = []
    losses = 20
    while (group := groups.next()) is not None:
        assert group.rows[0].index % chunk == 0
        assert len(group.rows) % chunk == 0 or group.rows[-1].index == total - 1
        unfinished = groups.unfinished(group)
        lost = losses > 0 and draw.random() < 0.4
        delivered = unfinished[: draw.randrange(len(unfinished))] if lost else unfinished
        answered += delivered
        finished.update(delivered)
        if lost:
            losses -= 1
            groups.put_back(group)
            assert not groups.exhausted()
    assert groups.exhausted()
    assert sorted(answered) == sorted(set(range(total)) - begun_with)


def test_groups_become_smaller_towards_the_end() -> None:
    groups = groups_of(100_000)
    sizes = []
    while (group := groups.next()) is not None:
        sizes.append(len(group.rows))
    assert sizes[0] == MAX_ROWS
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-2] == 8
    assert sum(sizes) == 100_000


def test_a_row_that_no_worker_survives_is_soon_alone_and_then_given_up() -> None:
    finished: set[int] = set()
    groups = groups_of(64, finished, workers=1, least=64)
    losses = 0
    while (group := groups.next()) is not None:
        numbers = [row.index for row in group.rows]
        if 13 in numbers and group.rows[numbers.index(13)].error is None:
            losses += 1
            groups.put_back(group)
            continue
        if numbers == [13]:
            assert str(group.rows[0].error) == "3 workers were lost one after the other while they answered it."
        finished.update(numbers)
    assert finished == set(range(64))
    assert losses == 6 + MAX_ROW_LOSSES  # 64 rows are halved six times
