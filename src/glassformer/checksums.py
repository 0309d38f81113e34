"""Checksums of what is read again after weeks: a ledger's lines, a training's checkpoints.

CRC-32 finds every flipped bit and every burst of damage up to 32 bits, at the speed of the disk. It is no signature: nobody
is kept from changing a file and its checksum.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BLOCK = 1 << 22
SEAL = "crc32"


def crc32_text(data: bytes, start: int = 0) -> str:
    return f"{zlib.crc32(data, start):08x}"


def file_crc32(path: Path) -> str:
    """The checksum of a file's bytes."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON data with their checksum."""
    return {**data, SEAL: crc32_text(json.dumps(data).encode())}


def unsealed(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """JSON data without their checksum; None if it does not fit them. Data without one are old, and taken as they are."""
    inner = {name: value for name, value in data.items() if name != SEAL}
    return inner if SEAL not in data or sealed(inner)[SEAL] == data[SEAL] else None
