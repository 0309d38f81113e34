"""Which processors may be used, on machines that are folders: hyper-threads, sockets, small cores, quotas, nonsense."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from glassformer.engine.cpu import cores
from glassformer.engine.cpu.cores import Core, Processors, available, mac_cores


def write(root: Path, files: Mapping[str, object]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", "utf-8")


def machine(root: Path, siblings: Mapping[int, str] | None = None, **files: Mapping[int, object]) -> Processors:
    """A machine whose processors have these siblings, and other files of the same names below their folders."""
    for number, text in (siblings or {}).items():
        write(root, {f"{cores.CPUS}/cpu{number}/topology/thread_siblings_list": text})
    for name, values in files.items():
        write(root, {f"{cores.CPUS}/cpu{number}/{name.replace('__', '/')}": value for number, value in values.items()})
    return available(root, siblings or {0})


def processors(found: Processors) -> list[tuple[int, ...]]:
    return [core.processors for core in found.cores]


class TestCores:
    def test_hyper_threads_share_a_core(self, tmp_path: Path) -> None:
        found = machine(tmp_path, {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"})
        assert processors(found) == [(0, 4), (1, 5), (2, 6), (3, 7)]
        assert (found.default_threads, found.max_threads) == (4, 8)
        assert found.thread_counts() == [1, 2, 4, 8]

    def test_hyper_threads_as_a_range(self, tmp_path: Path) -> None:
        assert processors(machine(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})) == [(0, 1), (2, 3)]

    def test_newer_name_comes_first(self, tmp_path: Path) -> None:
        newer = {0: "0-1", 1: "0-1"}
        assert processors(machine(tmp_path, {0: "0", 1: "1"}, topology__core_cpus_list=newer)) == [(0, 1)]

    def test_affinity_leaves_processors_out(self, tmp_path: Path) -> None:
        machine(tmp_path, {number: f"{number % 4},{number % 4 + 4}" for number in range(8)})
        found = available(tmp_path, {1, 5, 6})
        assert processors(found) == [(1, 5), (6,)]
        assert (found.default_threads, found.max_threads) == (2, 3)
        assert found.thread_counts() == [1, 2, 3]

    def test_sockets_are_filled_one_after_the_other(self, tmp_path: Path) -> None:
        """By package and core where siblings are not listed; numbers alternate between the sockets."""
        packages, numbers = {n: n % 2 for n in range(8)}, {n: n // 2 % 2 for n in range(8)}
        found = machine(tmp_path, dict.fromkeys(range(8), "?"), topology__physical_package_id=packages,
                        topology__core_id=numbers)  # fmt: skip
        assert processors(found) == [(0, 4), (2, 6), (1, 5), (3, 7)]
        assert found.default_threads == 4

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("cpu_capacity", {0: 446, 1: 446, 2: 1024, 3: 1024, 4: 1024}),
            ("cpufreq__cpuinfo_max_freq", {0: 1_800_000, 1: 1_800_000, 2: 2_900_000, 3: 3_000_000, 4: 2_900_000}),
        ],
    )
    def test_fast_cores_come_first(self, name: str, values: dict[int, int], tmp_path: Path) -> None:
        found = machine(tmp_path, {number: str(number) for number in range(5)}, **{name: values})
        assert [core.processors[0] for core in found.cores] == [2, 3, 4, 0, 1]
        assert (found.fast_cores, found.default_threads) == (3, 3)
        assert found.thread_counts() == [1, 2, 3, 4, 5]
        assert found.placement(3) == [2, 3, 4]

    def test_speed_that_some_lack_says_nothing(self, tmp_path: Path) -> None:
        found = machine(tmp_path, {0: "0", 1: "1"}, cpu_capacity={0: 1024})
        assert found.cores == (Core((0,)), Core((1,)))

    def test_missing_files_make_each_processor_a_core(self, tmp_path: Path) -> None:
        found = available(tmp_path, range(3))
        assert processors(found) == [(0,), (1,), (2,)]
        assert (found.quota, found.default_threads) == (None, 3)

    @pytest.mark.parametrize(
        "nonsense", ["", "x", "-", "1-", "-3", "0-x", ",", "0,,1", "9" * 5000, "0-" + "9" * 5000, "²", "\0", "5-3"]
    )
    def test_nonsense_in_files_counts_as_missing(self, nonsense: str, tmp_path: Path) -> None:
        both: dict[int, object] = {0: nonsense, 1: nonsense}
        found = machine(tmp_path, {0: nonsense, 1: nonsense}, topology__core_id=both, cpu_capacity=both,
                        topology__physical_package_id=both, cpufreq__cpuinfo_max_freq=both)  # fmt: skip
        assert processors(found) == [(0,), (1,)]
        assert found.max_threads == 2

    def test_huge_ranges_cost_nothing(self, tmp_path: Path) -> None:
        assert processors(machine(tmp_path, {0: f"0-{10**17}", 1: "1"})) == [(0, 1)]

    def test_files_that_are_folders(self, tmp_path: Path) -> None:
        (tmp_path / cores.CPUS / "cpu0/topology/thread_siblings_list").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").mkdir(parents=True)
        (tmp_path / "proc/cpuinfo").mkdir(parents=True)
        assert processors(available(tmp_path, {0})) == [(0,)]


class TestThreadCounts:
    @pytest.mark.parametrize(("logical", "counts"), [(1, [1]), (6, [1, 2, 4, 6]), (300, [1, 2, 4, 8, 16, 32, 64, 128, 256])])
    def test_are_powers_of_two_and_all(self, logical: int, counts: list[int], tmp_path: Path) -> None:
        assert available(tmp_path, range(logical)).thread_counts() == counts

    def test_of_hyper_threads(self, tmp_path: Path) -> None:
        found = machine(tmp_path, {number: f"{number % 6},{number % 6 + 6}" for number in range(12)})
        assert found.thread_counts() == [1, 2, 4, 6, 8, 12]


class TestPlacement:
    def test_distinct_cores_before_hyper_threads(self, tmp_path: Path) -> None:
        found = machine(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4"})
        assert found.placement(3) == [0, 2, 4]
        assert found.placement(7) == [0, 2, 4, 1, 3, 0, 2]


class TestQuota:
    def quota(self, root: Path, cgroup: str, **files: str) -> float | None:
        write(root, {"proc/self/cgroup": cgroup})
        write(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
        return available(root, range(64)).quota

    def test_v2(self, tmp_path: Path) -> None:
        files = {"cpu.max": "max 100000", "a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000"}
        assert self.quota(tmp_path, "0::/a/b", **files) == 2.5
        found = available(tmp_path, range(64))
        assert (found.default_threads, found.max_threads) == (2, 2)
        assert found.thread_counts() == [1, 2]

    def test_v2_the_least_of_all_groups_counts(self, tmp_path: Path) -> None:
        files = {"cpu.max": "800000 100000", "a/cpu.max": "300000 100000", "a/b/cpu.max": "600000 100000"}
        assert self.quota(tmp_path, "0::/a/b", **files) == 3.0

    def test_v2_in_a_container_that_sees_only_its_own_mount(self, tmp_path: Path) -> None:
        assert self.quota(tmp_path, "0::/docker/0123", **{"cpu.max": "50000 100000"}) == 0.5
        assert available(tmp_path, range(64)).default_threads == 1

    @pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
    def test_v1(self, mount: str, tmp_path: Path) -> None:
        files = {f"{mount}/job/cpu.cfs_quota_us": "400000", f"{mount}/job/cpu.cfs_period_us": "100000"}
        assert self.quota(tmp_path, "4:memory:/job\n2:cpu,cpuacct:/job\n0::/", **files) == 4.0

    def test_v1_without_a_limit(self, tmp_path: Path) -> None:
        files = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}
        assert self.quota(tmp_path, "1:cpu:/", **files) is None

    def test_without_the_list_of_groups(self, tmp_path: Path) -> None:
        write(tmp_path, {"sys/fs/cgroup/cpu.max": "200000 100000"})
        assert available(tmp_path, range(64)).quota == 2.0

    def test_groups_above_the_mount_are_left_out(self, tmp_path: Path) -> None:
        write(tmp_path, {"sys/fs/cpu.max": "100000 100000"})
        assert self.quota(tmp_path, "0::/../..", **{"cpu.max": "700000 100000"}) == 7.0

    @pytest.mark.parametrize(
        "text", ["", "max", "100000", "0 100000", "100000 0", "-5 3", "x y", "1e5 1e5", "9" * 5000 + " 1"]
    )
    def test_nonsense_is_no_limit(self, text: str, tmp_path: Path) -> None:
        assert self.quota(tmp_path, "0::/", **{"cpu.max": text}) is None

    @pytest.mark.parametrize("text", ["", "nonsense", ":", "::", "0:", "1:cpu", "0::relative"])
    def test_nonsense_in_the_list_of_groups(self, text: str, tmp_path: Path) -> None:
        assert self.quota(tmp_path, text) is None


class TestName:
    def test_of_x86(self, tmp_path: Path) -> None:
        write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)   8488C\n\nmodel name\t: other"})
        assert available(tmp_path, {0}).name == "Intel(R) Xeon(R) 8488C"

    def test_of_arm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "aarch64")
        write(tmp_path, {"proc/cpuinfo": "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n"})
        assert available(tmp_path, {0}).name == "aarch64 (implementer 0x41, part 0xd0c)"

    def test_without_any(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.machine", lambda: "")
        assert available(tmp_path, {0}).name == "unknown processor"


class TestMac:
    def test_performance_cores_are_the_fast_ones(self) -> None:
        found = mac_cores({"hw.physicalcpu": 8, "hw.logicalcpu": 8, "hw.perflevel0.physicalcpu": 4}, 8)
        assert [core.speed >= cores.FAST for core in found] == [True] * 4 + [False] * 4

    def test_intel_with_hyper_threads(self) -> None:
        assert mac_cores({"hw.physicalcpu": 2, "hw.logicalcpu": 4}, 4) == (Core((0, 2)), Core((1, 3)))

    @pytest.mark.parametrize("sysctls", [{}, {"hw.physicalcpu": 0}, {"hw.physicalcpu": 99}])
    def test_without_sensible_answers(self, sysctls: dict[str, int]) -> None:
        assert mac_cores(sysctls, 2) == (Core((0,)), Core((1,)))


class TestThisMachine:
    def test_uses_no_more_than_it_may(self) -> None:
        found = available()
        numbers = os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)
        assert set(found.allowed) == set(numbers)
        assert sorted(number for core in found.cores for number in core.processors) == sorted(numbers)
        assert 1 <= found.default_threads <= found.max_threads <= len(found.allowed)
        assert found.thread_counts()[-1] == found.max_threads

    @pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity masks")
    def test_affinity_mask_of_this_process(self) -> None:
        before = os.sched_getaffinity(0)
        try:
            os.sched_setaffinity(0, {min(before)})
            assert available().allowed == (min(before),)
            assert available().default_threads == 1
        finally:
            os.sched_setaffinity(0, before)
