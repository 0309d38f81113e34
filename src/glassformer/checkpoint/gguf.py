"""GGUF: llama.cpp's one-file format, read with a small bounded reader.

Layout: magic, version, two counts; then typed key–value metadata; then the tensor table; then, aligned, the data.
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.) Every count, length and offset is checked against the
file before it is used. Names and shapes are turned to the family's own by the tables in `gguf_names`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from glassformer.checkpoint import gguf_names
from glassformer.checkpoint.gguf_kinds import block_size, kind_name
from glassformer.checkpoint.stored_tensors import MappedFile, StoredTensor, check_region
from glassformer.ground.errors import CheckpointError, spell

NUMBERS = {  # by code, as both struct and numpy spell them
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY = 8, 9
LENGTH = struct.Struct("<Q")  # before each string
WINDOW = 1 << 17  # bytes in which strings are looked for at once
BATCH = 256  # strings that are read one by one after some that could not be
MAX_DIMENSIONS = 4
MAX_NESTING = 4  # arrays inside arrays, as deep as anybody needs; a hostile file would go on


class GgufCheckpoint:
    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _contents(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        return GgufReader(MappedFile(self.path)).read()

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's own key–value pairs."""
        return self._contents[0]

    @property
    def raw(self) -> Mapping[str, StoredTensor]:
        """The tensors under GGUF's own names."""
        return self._contents[1]

    @cached_property
    def config(self) -> Mapping[str, Any]:
        if self.metadata.get("general.type") == "adapter":
            advice = spell("adapter", str(self.path))
            raise CheckpointError(f"{self.path}: an adapter, not a model. Give the base that it is for, and {advice}.")
        return gguf_names.config_from_gguf(self.metadata, self.raw, self.path)

    @property
    def settings(self) -> Mapping[str, Any]:
        eos: set[int] = set()
        for name in ("eos", "eot", "eom"):  # the end of a text, of a turn, of a message
            key = f"tokenizer.ggml.{name}_token_id"
            token = self.metadata.get(key)
            if not isinstance(token, int | None):
                raise CheckpointError(
                    f"{self.path}: GGUF field {key!r} holds a {type(token).__name__} where a token id belongs. "
                    "Fetch the file again."
                )
            eos |= set() if token is None else {token}
        return {"eos_token_id": sorted(eos)} if eos else {}

    @cached_property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return gguf_names.tensors_from_gguf(self.metadata, self.config, self.raw, self.path)


class GgufReader:
    """One walk over the header; `at` never passes the end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
        if self._take(4, "magic") != b"GGUF":
            raise CheckpointError(f"{self.file.path}: not a GGUF file: it does not begin with 'GGUF'. Give another file.")
        version = self._number("<I", "version")
        if version not in (2, 3):
            raise self._damaged("version", f"it is {version}, and versions 2 and 3 can be read")
        tensors, pairs = self._count("tensor count", 24), self._count("metadata count", 12)
        metadata: dict[str, Any] = {}
        for index in range(pairs):
            key = self._string(f"metadata key {index}")
            metadata[key] = self._value(self._number("<I", key), key)
        table = [self._entry(index) for index in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged("general.alignment", f"{alignment!r} is not a power of two")
        start = -(-self.at // alignment) * alignment
        stored: dict[str, StoredTensor] = {}
        for name, shape, kind, offset in table:
            elements, size = block_size(kind)
            if shape[-1] % elements:
                raise self._damaged(
                    f"tensor {name!r}", f"rows of {shape[-1]} do not divide into {kind} blocks of {elements}"
                )
            if name in stored:
                raise self._damaged(f"tensor {name!r}", "it is listed twice")
            length = math.prod(shape) // elements * size
            check_region(self.file, name, start + offset, length)
            stored[name] = StoredTensor(name, kind, shape, self.file, start + offset, length)
        return metadata, stored

    def _entry(self, index: int) -> tuple[str, tuple[int, ...], str, int]:
        name = self._string(f"name of tensor {index}")
        where = f"tensor {name!r}"
        dimensions = self._number("<I", where)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self._damaged(where, f"it has {dimensions} dimensions")
        shape = tuple(self._number("<Q", where) for _ in range(dimensions))[::-1]
        if 0 in shape:
            raise self._damaged(where, f"its shape is {shape}")
        code = self._number("<I", where)
        kind = kind_name(code)
        if kind is None:
            raise self._damaged(where, f"its kind has the unknown code {code}")
        return name, shape, kind, self._number("<Q", where)

    def _value(self, code: int, key: str) -> Any:
        if code in NUMBERS:
            return self._number(NUMBERS[code], key)
        if code == STRING:
            return self._string(key)
        if code == ARRAY:
            return self._array(key)
        raise self._damaged(key, f"its type has the unknown code {code}")

    def _array(self, key: str, depth: int = 1) -> list[Any]:
        if depth > MAX_NESTING:
            raise self._damaged(key, f"its arrays are nested more than {MAX_NESTING} deep")
        code = self._number("<I", key)
        if code in NUMBERS:
            kind = np.dtype(NUMBERS[code])
            count = self._count(key, kind.itemsize)
            numbers: list[Any] = np.frombuffer(self._take(count * kind.itemsize, key), kind).tolist()
            return numbers
        if code == STRING:
            return self._strings(self._count(key, 8), key)
        if code == ARRAY:
            return [self._array(key, depth + 1) for _ in range(self._count(key, 12))]
        raise self._damaged(key, f"its items' type has the unknown code {code}")

    def _strings(self, count: int, key: str) -> list[str]:
        """Many strings, quickly: vocabularies have 150,000."""
        strings: list[str] = []
        while (left := count - len(strings)) > 0:
            strings += self._short_strings(left, key) if left >= BATCH else []
            strings += self._any_strings(min(count - len(strings), BATCH), key)
        return strings

    def _short_strings(self, count: int, key: str) -> list[str]:
        """The next strings up to `count` that have 1–255 bytes and no zero among them, without a look at each.

        Before such a string stand its length and seven zero bytes, and zeros stand nowhere else. So all places that look
        like a length are taken at once, and those are right that lead from one to the next.
        """
        strings: list[str] = []
        while len(strings) < count:
            window = np.frombuffer(self.file.buffer, np.uint8, min(WINDOW, len(self.file) - self.at), self.at)
            zeros = window == 0
            runs = zeros[1:-1] & zeros[2:]
            runs = runs[:-2] & runs[2:]
            starts = np.flatnonzero(runs[:-3] & runs[3:])  # followed by seven zeros
            ends = starts + 8 + window[starts]
            starts, ends = starts[ends <= window.size][: count - len(strings)], ends[ends <= window.size]
            gaps = np.flatnonzero(starts != np.concatenate(([0], ends))[: starts.size])
            found = int(gaps[0]) if gaps.size else starts.size
            if not found or np.count_nonzero(zeros[: ends[found - 1]]) != 7 * found:
                break
            joined = window[: ends[found - 1]].copy()
            joined[starts[:found]] = 0
            joined = joined[~zeros[: joined.size]]  # one zero for each length
            strings += self._decoded(joined[1:].tobytes(), key).split("\0")
            self.at += int(ends[found - 1])
        return strings

    def _any_strings(self, count: int, key: str) -> list[str]:
        """The next `count` strings, one by one."""
        buffer, offset, end = self.file.buffer, self.at, len(self.file)
        strings = []
        for _ in range(count):
            if end - offset < LENGTH.size:
                raise self._damaged(key, "the file ends inside it")
            (length,) = LENGTH.unpack_from(buffer, offset)
            offset += LENGTH.size
            if length > end - offset:
                raise self._damaged(key, f"a string of {length} bytes passes the end of the file")
            strings.append(self._decoded(buffer[offset : offset + length], key))
            offset += length
        self.at = offset
        return strings

    def _decoded(self, text: bytes, key: str) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise self._damaged(key, "a string is not UTF-8") from error

    def _string(self, key: str) -> str:
        return self._any_strings(1, key)[0]

    def _number(self, kind: str, key: str) -> Any:
        return struct.unpack(kind, self._take(struct.calcsize(kind), key))[0]

    def _count(self, key: str, least: int) -> int:
        """A count of things that take at least `least` bytes each."""
        count: int = self._number("<Q", key)
        if count > (len(self.file) - self.at) // least:
            raise self._damaged(key, f"it counts {count} entries, more than the rest of the file can hold")
        return count

    def _take(self, size: int, key: str) -> bytes:
        if size > len(self.file) - self.at:
            raise self._damaged(key, "the file ends inside it")
        self.at += size
        return self.file.buffer[self.at - size : self.at]

    def _damaged(self, field: str, why: str) -> CheckpointError:
        return CheckpointError(f"{self.file.path}: GGUF field {field!r} is unusable: {why}. Fetch the file again.")
