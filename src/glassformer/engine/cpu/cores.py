"""The processors that this process may use, and how many threads fit them.

A logical processor is not always a core, and not always ours: hyper-threads share a core's arithmetic units, an affinity
mask (taskset, a container's cpuset) leaves some of the processors out, a container's quota (cgroup v1 or v2) limits how much
time all of them get together, and small cores are slower than large ones (ARM big.LITTLE, Intel's E-cores).

On Linux everything is read from files below a root folder; a file that is missing or makes no sense counts as if the system
did not have it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from glassformer.engine.resources import control_groups, parse_integer, read_text

MAX_THREADS = 256
FAST = (
    0.85  # of the fastest core's speed: turbo frequencies differ by less between large cores, more between large and small
)
CPUS = "sys/devices/system/cpu"
SYSCTLS = ("hw.physicalcpu", "hw.logicalcpu", "hw.perflevel0.physicalcpu")


@dataclass(frozen=True)
class Core:
    """A physical core: its logical processors that may be used, and its speed relative to the fastest one's."""

    processors: tuple[int, ...]
    speed: float = 1.0


@dataclass(frozen=True)
class Processors:
    """What this process may use."""

    name: str
    allowed: tuple[int, ...]  # numbers of logical processors
    quota: float | None = None  # how many processors' time they get together; None: no limit
    root: Path = Path("/")

    @cached_property
    def cores(self) -> tuple[Core, ...]:
        """Physical cores, the fast ones first."""
        if sys.platform == "darwin" and self.root == Path("/"):
            return mac_cores(_sysctls(), len(self.allowed))
        return linux_cores(self.allowed, self.root)

    @property
    def fast_cores(self) -> int:
        return sum(core.speed >= FAST for core in self.cores)

    @property
    def default_threads(self) -> int:
        """One thread per fast core, as far as the quota goes."""
        return min(self.fast_cores, self.max_threads)

    @property
    def max_threads(self) -> int:
        """One thread per logical processor, as far as the quota goes.

        A quota of 2.5 processors makes two: threads wait for each other at every step, so one that is suspended until the
        quota's next period would hold up all of them.
        """
        return max(1, min(len(self.allowed), MAX_THREADS, MAX_THREADS if self.quota is None else int(self.quota)))

    def thread_counts(self) -> list[int]:
        """The numbers of threads that are worth measuring: powers of two, all fast cores, all cores, all hyper-threads."""
        limit = self.max_threads
        powers = {1 << power for power in range(limit.bit_length())}
        return sorted(powers | {min(count, limit) for count in (self.fast_cores, len(self.cores), len(self.allowed))})

    def placement(self, threads: int) -> list[int]:
        """The logical processor that each thread is pinned to: fast cores first, a core's second hyper-thread last."""
        depth = max(len(core.processors) for core in self.cores)
        order = [core.processors[index] for index in range(depth) for core in self.cores if index < len(core.processors)]
        return [order[thread % len(order)] for thread in range(threads)]


def available(root: Path = Path("/"), allowed: Collection[int] | None = None) -> Processors:
    """What this process may use now; for tests, on a machine whose files are below `root`."""
    processors = tuple(sorted(_affinity() if allowed is None else allowed))
    return Processors(_name(root), processors, cpu_quota(root), root)


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _name(root: Path) -> str:
    """The processor's name as /proc/cpuinfo has it; on ARM the numbers of its maker and design; else the architecture."""
    fields: dict[str, str] = {}
    with suppress(OSError), (root / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        for line in file:  # of the first processor: the kernel makes the others' only if they are read
            key, colon, value = line.partition(":")
            if not colon:
                break
            fields[key.strip().lower()] = value.strip()
    if name := fields.get("model name"):
        return " ".join(name.split())
    design = ", ".join(f"{key} {fields[f'cpu {key}']}" for key in ("implementer", "part") if f"cpu {key}" in fields)
    return (platform.machine() or "unknown processor") + (f" ({design})" if design else "")


# Cores ---------------------------------------------------------------------------------------------------------------


def linux_cores(allowed: Sequence[int], root: Path = Path("/")) -> tuple[Core, ...]:
    """The cores of these logical processors; one that the system says nothing of is a core by itself."""
    speeds = _speeds(allowed, root)
    grouped: set[int] = set()
    cores = []
    for processor in allowed:
        if processor not in grouped:
            siblings = tuple(sorted({processor, *_siblings(processor, allowed, root)} - grouped))
            grouped.update(siblings)
            cores.append(Core(siblings, max(speeds[sibling] for sibling in siblings)))
    packages = {core: _number(_cpu(core.processors[0], root) / "topology/physical_package_id") or 0 for core in cores}
    return tuple(sorted(cores, key=lambda core: (core.speed < FAST, packages[core], core.processors)))


def _cpu(processor: int, root: Path) -> Path:
    return root / CPUS / f"cpu{processor}"


def _siblings(processor: int, allowed: Sequence[int], root: Path) -> list[int]:
    """Those of the allowed processors that share a core with one of them."""
    topology = _cpu(processor, root) / "topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the newer name first
        if (ranges := _ranges(read_text(topology / name))) is not None:
            return [other for other in allowed if any(first <= other <= last for first, last in ranges)]
    if (core := _core_ids(processor, root)) is None:
        return []
    return [other for other in allowed if _core_ids(other, root) == core]


def _core_ids(processor: int, root: Path) -> tuple[int, int] | None:
    """A processor's package, and its core in the package."""
    package, core = (_number(_cpu(processor, root) / "topology" / name) for name in ("physical_package_id", "core_id"))
    return None if package is None or core is None else (package, core)


def _ranges(text: str | None) -> list[tuple[int, int]] | None:
    """A list such as 0-3,8 as (first, last) pairs; None if it is none."""
    ranges = []
    for part in (text or "").split(","):
        begin, dash, end = part.partition("-")
        first, last = parse_integer(begin), parse_integer(end if dash else begin)
        if first is None or last is None:
            return None
        ranges.append((first, last))
    return ranges


def _speeds(allowed: Sequence[int], root: Path) -> dict[int, float]:
    """Each processor's speed relative to the fastest: by its capacity, or else by its highest frequency."""
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        values = {processor: _number(_cpu(processor, root) / name) or 0 for processor in allowed}
        if values and min(values.values()) > 0:
            fastest = max(values.values())
            return {processor: value / fastest for processor, value in values.items()}
    return dict.fromkeys(allowed, 1.0)


def mac_cores(sysctls: Mapping[str, int], logical: int) -> tuple[Core, ...]:
    """The cores of a Mac, whose processors have no numbers: performance cores first, as level 0 counts them."""
    physical = min(sysctls.get("hw.physicalcpu") or logical, logical)
    fast = sysctls.get("hw.perflevel0.physicalcpu") or physical
    return tuple(Core(tuple(range(core, logical, physical)), 1.0 if core < fast else FAST / 2) for core in range(physical))


def _sysctls() -> dict[str, int]:
    values = {}
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(["/usr/sbin/sysctl", *SYSCTLS], capture_output=True, text=True, timeout=5).stdout
        for line in output.splitlines():
            name, _, value = line.partition(": ")
            if (number := parse_integer(value.strip())) is not None:
                values[name] = number
    return values


# Quotas --------------------------------------------------------------------------------------------------------------


def cpu_quota(root: Path = Path("/")) -> float | None:
    """How many processors' time this process may use: the least that its control groups and those above them grant."""
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for version, folder in control_groups("cpu", root):
        if version == 2:
            quota, _, period = (read_text(folder / "cpu.max") or "").partition(" ")
        else:
            quota, period = (read_text(folder / f"cpu.cfs_{what}_us") or "" for what in ("quota", "period"))
        yield from _quotient(quota, period)


def _quotient(quota: str, period: str) -> Iterator[float]:
    """Processors' time of each period, where both are numbers; without a limit the quota is `max` or -1."""
    time, length = parse_integer(quota), parse_integer(period)
    if time and length:
        yield time / length


def _number(path: Path) -> int | None:
    return parse_integer(read_text(path) or "")
