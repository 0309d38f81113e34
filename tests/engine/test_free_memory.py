"""How much memory is free, read from made-up trees of the kernel's files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from glassformer.engine.resources import available_memory, free_memory

MIB = 1 << 20


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    write(tmp_path / "proc", "meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    8192 kB\nHugePages_Total: 0")
    return tmp_path


def write(folder: Path, name: str, content: str | int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{content}\n")


def test_what_linux_says_is_available(machine: Path) -> None:
    assert available_memory(machine) == 8 * MIB


def test_nothing_is_known_elsewhere(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    assert free_memory("mps") is None


def test_a_group_of_version_2_leaves_what_it_does_not_use(machine: Path) -> None:
    write(machine / "proc/self", "cgroup", "0::/box/inner")
    box = machine / "sys/fs/cgroup/box"
    write(box, "memory.max", 6 * MIB)
    write(box, "memory.current", 5 * MIB)
    write(box, "memory.stat", f"anon 7\ninactive_file {2 * MIB}\nactive_file 9")
    write(box / "inner", "memory.max", "max")
    write(box / "inner", "memory.current", 5 * MIB)
    assert available_memory(machine) == 3 * MIB


def test_a_group_of_version_1_leaves_what_it_does_not_use(machine: Path) -> None:
    write(machine / "proc/self", "cgroup", "5:cpu,cpuacct:/\n4:memory:/box")
    box = machine / "sys/fs/cgroup/memory/box"
    write(box, "memory.limit_in_bytes", 4 * MIB)
    write(box, "memory.usage_in_bytes", 5 * MIB)
    write(box, "memory.stat", "total_inactive_file 0")
    assert available_memory(machine) == 0


def test_a_group_without_a_limit_leaves_all(machine: Path) -> None:
    mount = machine / "sys/fs/cgroup/memory"
    write(mount, "memory.limit_in_bytes", 9223372036854771712)
    write(mount, "memory.usage_in_bytes", 5 * MIB)
    assert available_memory(machine) == 8 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_machine_has_some() -> None:
    assert (free_memory("cpu") or 0) > MIB
