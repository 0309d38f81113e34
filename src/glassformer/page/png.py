"""Grey pictures as PNG bytes (https://www.w3.org/TR/png-3/): what a page needs to hold a picture, and no more."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import numpy.typing as npt


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A picture of (height, width) greys, 0 black."""
    height, width = pixels.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each line begins with the number of its filter: none
    lines[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
