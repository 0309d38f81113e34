"""Pickles by hand: tensors that say what they like about themselves, in zips and in the old format."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001


class Storage:
    """Stands for a storage in a file: its key there, and how many float32 numbers it says that it has."""

    def __init__(self, key: str, count: int) -> None:
        self.key, self.count = key, count


class Claimed:
    """A tensor with any shape, strides and offset over a storage."""

    def __init__(self, storage: Storage, shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> None:
        self.parts = (storage, offset, shape, stride, False, OrderedDict())

    def __reduce__(self) -> Any:
        return torch._utils._rebuild_tensor_v2, self.parts


class Calls:
    """Unpickled, it would call a function."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.call = (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.call


def dumped(value: object, protocol: int = 2, old: bool = False) -> bytes:
    class Pickler(pickle.Pickler):
        def persistent_id(self, found: Any) -> Any:
            if isinstance(found, Storage):
                return ("storage", torch.FloatStorage, found.key, "cpu", found.count, *([None] if old else []))
            return None

    target = io.BytesIO()
    Pickler(target, protocol).dump(value)
    return target.getvalue()


def zipped(path: Path, parts: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path


def write_zip(path: Path, pickled: bytes, **storages: bytes) -> Path:
    """As torch.save lays it out; a storage's key is an underscore and a number."""
    parts = {f"x/data/{key[1:]}": data for key, data in storages.items()}
    return zipped(path, {"x/data.pkl": pickled, "x/byteorder": b"little", **parts, "x/version": b"3\n"})


def write_old(path: Path, value: object, keys: list[str], storages: list[tuple[int, bytes]]) -> Path:
    """The format before PyTorch 1.6: pickles one behind the other, then each storage with its length before it."""
    system = {"protocol_version": VERSION, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = [dumped(one, old=True) for one in (MAGIC, VERSION, system, value, keys)]
    path.write_bytes(b"".join(head) + b"".join(struct.pack("<q", count) + data for count, data in storages))
    return path
