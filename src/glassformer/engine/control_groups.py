"""Linux control groups: what a container, or whoever started this process, leaves it of the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

MOUNTS_V1: Mapping[str, tuple[str, ...]] = {  # the folders that a controller of version 1 may be mounted at
    "cpu": ("cpu", "cpu,cpuacct", "cpuacct,cpu"),
    "memory": ("memory",),
}


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
