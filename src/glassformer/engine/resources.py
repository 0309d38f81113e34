"""What this process may still have: free memory, on a GPU or on this machine, within what its control groups allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

MOUNTS_V1: Mapping[str, tuple[str, ...]] = {  # the folders that a controller of version 1 may be mounted at
    "cpu": ("cpu", "cpu,cpuacct", "cpuacct,cpu"),
    "memory": ("memory",),
}
GROUP_FILES = {  # by version: the limit, what is used, and what of that is only kept until somebody needs the memory
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def free_memory(device: str) -> int | None:
    """Bytes that can still be had on a device, as a `Description` names it; None where nobody says."""
    if device.startswith("cuda"):
        import torch

        from glassformer.engine.gpu.device import free_memory as free_gpu_memory

        return free_gpu_memory(torch.device(device))
    return available_memory() if device == "cpu" else None


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can have without swapping: the least that Linux and its control groups leave it."""
    meminfo = _fields(read_text(root / "proc/meminfo") or "")
    system = [meminfo["MemAvailable:"] << 10] if "MemAvailable:" in meminfo else []
    return min((*system, *_left_by_groups(root)), default=None)


def _left_by_groups(root: Path) -> Iterator[int]:
    for version, folder in control_groups("memory", root):
        limit_file, usage_file, inactive = GROUP_FILES[version]
        limit, usage = (parse_integer(read_text(folder / name) or "") for name in (limit_file, usage_file))
        if limit is not None and usage is not None:
            reclaimable = _fields(read_text(folder / "memory.stat") or "").get(inactive, 0)
            yield max(0, limit - max(0, usage - reclaimable))


def _fields(text: str) -> dict[str, int]:
    """Lines of a name and a number, and perhaps a unit."""
    fields = {}
    for line in text.splitlines():
        name, value, *_ = [*line.split(), "", ""]
        if (number := parse_integer(value)) is not None:
            fields[name] = number
    return fields


# Control groups -------------------------------------------------------------------------------------------------------


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """The version and the folder of each control group of this process, and of those above them, which limit it too."""
    mounts = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or f"0::/\n1:{controller}:/").splitlines():
        _, controllers, path, *_ = [*line.split(":", 2), "", ""]
        if not controllers:
            for mount in (mounts, mounts / "unified"):
                yield from ((2, folder) for folder in _group_folders(mount, path))
        elif controller in controllers.split(","):
            for name in MOUNTS_V1[controller]:
                yield from ((1, folder) for folder in _group_folders(mounts / name, path))


def _group_folders(mount: Path, path: str) -> Iterator[Path]:
    """A control group's folder and those above it; inside a container only some of them, or only the mount, are there."""
    folder = mount
    yield folder
    for part in PurePosixPath(path).parts:
        if part not in ("/", ".."):
            folder /= part
            yield folder


def read_text(path: Path) -> str | None:
    """A small file of the kernel's; None where there is none."""
    try:
        return path.read_text("utf-8", errors="replace").strip()
    except OSError:
        return None


def parse_integer(text: str) -> int | None:
    """A whole number that is not negative and fits 63 bits; None if it is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
