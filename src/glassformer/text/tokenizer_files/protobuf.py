"""Reading protobuf's wire format: a message is a run of fields, each a number, a kind and a value.

Only what SentencePiece's files need, and every length is checked against the bytes that are there. A value comes as
an int (varint), a float (four bytes) or bytes (a text, a message or a table, which the caller knows).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | float | bytes

VARINT, WIDE, BLOCK, NARROW = 0, 1, 2, 5  # the kinds; 3 and 4 are groups, long out of use


class Malformed(ValueError):
    """What is wrong with the bytes; the caller knows which file they are from."""


def fields(raw: bytes) -> Iterator[tuple[int, Value]]:
    """The fields of a message, in the order of the file; one may come several times.

    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02]) + b"hi"))
    [(1, 150), (2, b'hi')]
    """
    at, end = 0, len(raw)
    while at < end:
        key, at = _varint(raw, at, end)
        number, kind = key >> 3, key & 7
        if number == 0:
            raise Malformed(f"byte {at} begins a field without a number")
        if kind == VARINT:
            value, at = _varint(raw, at, end)
            yield number, value - (1 << 64) if value >> 63 else value  # negative numbers are written as very large ones
            continue
        if kind == BLOCK:
            size, at = _varint(raw, at, end)
        elif kind in (WIDE, NARROW):
            size = 4 if kind == NARROW else 8
        else:
            raise Malformed(f"byte {at} begins a field of the unknown kind {kind}")
        if size > end - at:
            raise Malformed(f"field {number} at byte {at} claims {size} bytes where {end - at} are left")
        block = raw[at : at + size]
        at += size
        yield number, block if kind == BLOCK else struct.unpack("<f" if kind == NARROW else "<d", block)[0]


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    """A whole number, seven bits to a byte, the lowest first; and where the next thing begins."""
    value = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, at
        shift += 7
    raise Malformed(f"a number ends nowhere at byte {at}")
