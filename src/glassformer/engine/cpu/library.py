"""The native library's plain C interface, through ctypes. `native/glass.h` says what each field means.

An `Engine` is one team of threads on one level of instructions. Nothing here checks what it is given: `lowering` and
`executor` make programs and passes of checked numbers only.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_float, c_int32, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.errors import ExecutorError, SettingError, nearest

PAGE = 64  # tokens of a page of keys and values
BLOCK = 32  # inputs that are quantised together
TILE = 16  # rows of a packed matrix that lie together


MOST_THREADS = 256
AGAIN = "Build it anew, with GLASS_REBUILD=1 in the environment."


class Kind(IntEnum):
    """How a matrix lies: floats row after row, packed kinds in tiles."""

    F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K = range(9)


class Source(IntEnum):
    """How a packed matrix lies in a file."""

    Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K = range(7)


class Store(IntEnum):
    """How keys and values lie in memory."""

    F32, F16, BF16, Q8 = range(4)


class How(IntEnum):
    NO_NORM, RMS, LAYER = range(3)


class Activation(IntEnum):
    SILU, GELU, GELU_TANH, RELU, TANH = range(5)


class After(IntEnum):
    """What follows a product."""

    NOTHING, ADDED, ACTIVATED, GATED = range(4)


class Do(IntEnum):
    EMBED, NORMALISE, PRODUCT, TURN, REMEMBER, PLACE, ATTEND, PATTERN, MIX, ADD, ACTIVATE, COPY = range(12)


class Over(IntEnum):
    ALL, SCORED, GATHERED = range(3)


def _numbers(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_int32) for name in names]


class Matrix(Structure):
    _fields_ = [("data", c_void_p), ("bias", c_void_p), *_numbers("kind", "rows", "columns", "unused")]


class Norm(Structure):
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("eps", c_float), ("how", c_int32)]


class Step(Structure):
    _fields_ = [
        *_numbers("kind", "input", "output", "other", "over", "after", "activation", "count"),
        ("matrices", Matrix * 3),
        ("norm", Norm),
        ("query_norm", Norm),
        ("key_norm", Norm),
        *_numbers("query", "key", "value", "layer", "heads", "groups", "size"),
        *_numbers("window", "causal", "memory", "rope", "first", "reach"),
        ("scale", c_float),
        ("unused", c_float),
        ("distances", c_void_p),
    ]


class Feed(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("pages", "source", "tree", "places")),
        *_numbers("start", "fed", "offset", "first", "count", "sources", "scored"),
    ]


class Turns(Structure):
    _fields_ = [("frequencies", c_void_p), ("table", c_void_p), ("scale", c_float), ("size", c_int32)]


class Pass(Structure):
    _fields_ = [
        ("steps", POINTER(Step)),
        ("feeds", POINTER(Feed)),
        ("turns", POINTER(Turns)),
        *((name, c_void_p) for name in ("ids", "positions", "wanted", "types", "buffers", "widths")),
        *_numbers("step_count", "feed_count", "turn_count", "token_count", "wanted_count", "store", "parts", "begin"),
    ]


STRUCTURES = (Matrix, Norm, Step, Feed, Turns, Pass)


@cache
def library() -> ctypes.CDLL:
    """The library, found or built."""
    from glassformer.engine.cpu import build

    path = os.environ.get("GLASS_LIBRARY") or build.library()
    try:
        found = ctypes.CDLL(str(path))
    except OSError as error:
        raise ExecutorError(f"the CPU engine's library cannot be loaded: {error}. {AGAIN}") from error
    found.glass_levels.restype = ctypes.c_char_p
    found.glass_open.restype = c_void_p
    found.glass_open.argtypes = [ctypes.c_char_p, c_int32]
    found.glass_close.argtypes = [c_void_p]
    found.glass_close.restype = None
    found.glass_run.argtypes = [c_void_p, POINTER(Pass)]
    found.glass_packed_size.argtypes = [c_int32, c_int32, c_int32]
    found.glass_packed_size.restype = ctypes.c_uint64
    found.glass_pack.argtypes = [c_void_p, c_int32, c_void_p, c_int32, c_int32, c_void_p, c_void_p]
    found.glass_pack.restype = None
    found.glass_row.argtypes = [POINTER(Matrix), c_int32, c_void_p]
    found.glass_row.restype = None
    found.glass_size.argtypes = [c_int32]
    sizes = [found.glass_size(number) for number in range(len(STRUCTURES))]
    if sizes != [ctypes.sizeof(structure) for structure in STRUCTURES]:
        raise ExecutorError(f"the CPU engine's library is of another version than this package. {AGAIN}")
    return found


def levels() -> tuple[str, ...]:
    """The levels that the library has and this processor can run, best first."""
    return tuple(library().glass_levels().decode().split())


def chosen_level() -> str:
    """The best level, or the one that GLASS_LEVEL names."""
    known, asked = levels(), os.environ.get("GLASS_LEVEL")
    if not asked:
        return known[0]
    if asked not in known:
        raise SettingError(
            f"GLASS_LEVEL is {asked!r}, which cannot run here.{nearest(asked, known)} Here can run: {', '.join(known)}."
        )
    return asked


def chosen_threads() -> int:
    """As many threads as there are cores, or as GLASS_THREADS says, or OMP_NUM_THREADS, which others go by."""
    if asked := os.environ.get("GLASS_THREADS"):
        if not asked.isdecimal() or not 1 <= int(asked) <= MOST_THREADS:
            raise SettingError(f"GLASS_THREADS is {asked!r}; it must be a number from 1 to {MOST_THREADS}.")
        return int(asked)
    others = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list: a number for each level of nesting
    if others.isdecimal() and int(others) > 0:
        return min(int(others), MOST_THREADS)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    return {"level": chosen_level(), "levels": list(levels()), "threads": chosen_threads()}


class Engine:
    """A team of threads on one level. A forked process gets a team of its own, for threads do not come along."""

    def __init__(self, level: str | None = None, threads: int | None = None) -> None:
        self.level = level or chosen_level()
        self.threads = threads or chosen_threads()
        self._handle, self._process = self._start(), os.getpid()

    def _start(self) -> int:
        handle = library().glass_open(self.level.encode(), self.threads)
        if not handle:
            raise ExecutorError(f"the CPU engine cannot start {self.threads} threads on level {self.level!r}.")
        return int(handle)

    @property
    def handle(self) -> int:
        if self._process != os.getpid():
            self._handle, self._process = self._start(), os.getpid()
        return self._handle

    def run(self, given: Pass) -> None:
        if library().glass_run(self.handle, given):
            raise ExecutorError("the CPU engine lacks memory for this pass. Shorten the prompt, or feed fewer rows.")

    def pack(
        self, source: Source, raw: npt.NDArray[np.uint8], rows: int, columns: int, order: npt.NDArray[np.int32] | None,
        out: npt.NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """A file's packed rows into tiles; `order`: for each row the file's row that holds it."""
        where = None if order is None else order.ctypes.data
        library().glass_pack(self.handle, source, raw.ctypes.data, rows, columns, where, out.ctypes.data)

    def __del__(self) -> None:
        if getattr(self, "_process", None) == os.getpid():
            library().glass_close(self._handle)


def packed_size(source: Source, rows: int, columns: int) -> int:
    return int(library().glass_packed_size(source, rows, columns))


def packed_kind(source: Source) -> Kind:
    return Kind(library().glass_packed_kind(source))


def row_of(matrix: Matrix, number: int) -> npt.NDArray[np.float32]:
    """One row of a matrix as floats."""
    out = np.empty(matrix.columns, np.float32)
    library().glass_row(matrix, number, out.ctypes.data)
    return out
