"""How much memory is free: on a GPU, or on this machine within what its control groups allow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from glassformer.engine.control_groups import control_groups, parse_integer, read_text

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
