"""The native library's C interface, through ctypes. `native/glass.h` says what each field means.

An `Engine` is one thread pool on one level of instructions. What is checked here is that a program's whole numbers fit their
C types, where ctypes would cut them off; otherwise `passes` and `executor` make only valid numbers.
"""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from ctypes import POINTER, Structure, c_float, c_int, c_int32, c_void_p
from enum import IntEnum
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from glassformer.engine.cpu.cores import MAX_THREADS, available
from glassformer.ground.candidates import EntropyStats
from glassformer.ground.errors import ExecutorError, SettingError, did_you_mean, spell
from glassformer.ground.ownership import Shared

BLOCK = 32  # inputs that are quantized together

LEAST, MOST = -(2**31), 2**31 - 1  # of a 32-bit number
NO_ROPE = -1  # in place of the index of a RoPE table
NO_BUFFER = -1  # in place of the index of a buffer
LACKS_MEMORY = "the CPU engine lacks memory for this pass. Shorten the prompt, or feed fewer rows."
REBUILD = "Build it anew, with GLASS_REBUILD=1 in the environment."


class MatrixKind(IntEnum):
    """How a matrix is stored in memory: floats in rows, packed kinds in tiles."""

    F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K, MXFP4 = range(10)


class FileKind(IntEnum):
    """How a packed matrix is stored in a file."""

    Q4_0, Q4_1, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K, MXFP4 = range(8)


class KvDtype(IntEnum):
    """What cached keys and values are stored in."""

    F32, F16, BF16, Q8 = range(4)


class ActivationRounding(IntEnum):
    """What the inputs of packed matrices are rounded to: see `native/glass.h`."""

    Q14, MIXED, Q8 = range(3)


def int32(value: int, name: str) -> int:
    """A number that goes into native code, refused if 32 bits cannot hold it."""
    if not LEAST <= value <= MOST:
        raise ExecutorError(
            f"the CPU engine cannot run {name}={value}, which does not fit 32 bits. Use {spell('executor', 'plain')}."
        )
    return value


class NativeStructure(Structure):
    """A structure of native code, whose whole numbers are checked wherever they are set."""

    __slots__ = ()
    numbers: ClassVar[Mapping[str, int]]  # its whole numbers, and which field each is

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.numbers = {name: index for index, (name, kind, *_) in enumerate(cls._fields_) if kind is c_int32}

    def __init__(self, *values: Any, **named: Any) -> None:
        for name, index in self.numbers.items() if values else ():
            if index < len(values) and not LEAST <= values[index] <= MOST:
                int32(values[index], name)
        super().__init__(*values)
        for name, value in named.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.numbers and not LEAST <= value <= MOST:
            int32(value, name)
        super().__setattr__(name, value)


def _numbers(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_int32) for name in names]


class NativeMatrix(NativeStructure):
    __slots__ = ()  # in each of these: setting a field that does not exist is an error
    _fields_ = [("data", c_void_p), ("bias", c_void_p), *_numbers("kind", "rows", "columns", "unused")]


class NativeNorm(NativeStructure):
    __slots__ = ()
    _fields_ = [("weight", c_void_p), ("bias", c_void_p), ("eps", c_float), *_numbers("kind", "groups", "unused")]


class NativeStep(NativeStructure):
    __slots__ = ()
    _fields_ = [
        *_numbers("kind", "input", "output", "second_input", "scope", "epilogue", "activation", "matrix_count"),
        ("matrices", NativeMatrix * 3),
        ("norm", NativeNorm),
        ("query_norm", NativeNorm),
        ("key_norm", NativeNorm),
        *_numbers("query_offset", "key_offset", "value_offset", "layer", "heads", "kv_heads", "head_size", "latent"),
        *_numbers("kv_planes", "kv_numbers"),
        *_numbers("window", "causal", "cross_attention", "rope", "position_offset", "max_distance"),
        *_numbers("output_offset", "column", "width", "query_distances", "key_distances"),
        ("scale", c_float),
        ("softcap", c_float),
        ("distance_bias", c_void_p),
        ("distance_buckets", c_void_p),
        ("sinks", c_void_p),
        ("experts", c_void_p),
        *_numbers("expert_count", "chosen", "normalized", "third_input"),
        ("gate_limit", c_float),
        ("gate_offset", c_float),
        ("floor", c_float),
        *_numbers("sigmoid", "groups", "kept_groups", "group_best"),
        ("correction", c_void_p),
        ("slopes", c_void_p),
        ("activation_numbers", c_void_p),
        ("position_beta", c_float),
        *_numbers("position_length"),
        *((name, c_void_p) for name in ("kernel", "kernel_bias", "vector")),
        ("least", c_float),
        ("most", c_float),
        *_numbers(
            "kernel_size", "state_offset", "key_size", "delta", "state_norms", "shares_inputs", "chunk", "position_first"
        ),
        ("factor", c_float),
        *_numbers("global_tokens"),
    ]


class NativeFeed(Structure):
    """Made for every row of every pass, so that it is not checked: its numbers are lengths of rows and counts of tokens."""

    __slots__ = ()
    _fields_ = [
        *((name, c_void_p) for name in ("pages", "source_pages", "tree_mask", "tree_positions", "state", "global_tokens")),
        *_numbers("start", "length", "offset", "first_token", "token_count", "source_length", "scored_count"),
        *_numbers("first_global", "end_global", "unused"),
    ]


class NativeRope(NativeStructure):
    __slots__ = ()
    _fields_ = [
        ("frequencies", c_void_p), ("table", c_void_p), ("scale", c_float), *_numbers("size", "interleaved", "unused"),
    ]  # fmt: skip


class NativePass(Structure):
    """As a feed, not checked."""

    __slots__ = ()
    _fields_ = [
        ("steps", POINTER(NativeStep)),
        ("feeds", POINTER(NativeFeed)),
        ("rope_tables", POINTER(NativeRope)),
        *((name, c_void_p) for name in ("ids", "positions", "scored", "token_types", "buffers", "widths")),
        *_numbers("end_step", "feed_count", "rope_count", "token_count", "scored_count", "kv_dtype"),
        *_numbers("activation_rounding", "begin_step"),
    ]


class NativeKept(Structure):
    __slots__ = ()
    _fields_ = [("values", c_void_p), *_numbers("buffer", "unused")]


STRUCTURES = (NativeMatrix, NativeNorm, NativeStep, NativeFeed, NativeRope, NativePass, NativeKept)


class SoftmaxSums(Structure):
    __slots__ = ()
    _fields_ = [("total", ctypes.c_double), ("weighted", ctypes.c_double), ("in_play", ctypes.c_int64)]


@cache
def library() -> ctypes.CDLL:
    """The library, built if need be."""
    from glassformer.engine.cpu import build

    path = os.environ.get("GLASS_LIBRARY") or build.library()
    try:
        native = ctypes.CDLL(str(path))
    except OSError as error:
        raise ExecutorError(f"the CPU engine's library cannot be loaded: {error}. {REBUILD}") from error
    try:
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(native, name)
            function.restype, function.argtypes = result, arguments
        sizes = [native.glass_size(index) for index in range(len(STRUCTURES))]
    except AttributeError:  # a function is missing
        sizes = []
    if sizes != [ctypes.sizeof(structure) for structure in STRUCTURES]:
        raise ExecutorError(f"the CPU engine's library is of another version than this package. {REBUILD}")
    return native


FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {  # what each gives, and what it takes
    "glass_levels": (ctypes.c_char_p, ()),
    "glass_open": (c_void_p, (ctypes.c_char_p, c_int32, POINTER(c_int32))),
    "glass_close": (None, (c_void_p,)),
    "glass_run": (c_int, (c_void_p, POINTER(NativePass))),
    "glass_decode": (c_int, (c_void_p, POINTER(NativePass), c_int32, c_int32, c_void_p, POINTER(NativeKept), c_int32)),
    "glass_matmul": (c_int, (c_void_p, POINTER(NativeMatrix), c_int32, c_int32, c_void_p, c_void_p)),
    "glass_input_gradients": (None, (c_void_p, POINTER(NativeMatrix), c_int32, c_void_p, c_void_p)),
    "glass_packed_kind": (c_int, (c_int32,)),
    "glass_packed_size": (ctypes.c_uint64, (c_int32, c_int32, c_int32)),
    "glass_pack": (None, (c_void_p, c_int32, c_void_p, c_int32, c_int32, c_void_p, c_void_p)),
    "glass_dequantize_row": (None, (POINTER(NativeMatrix), c_int32, c_void_p)),
    "glass_softmax_sums": (SoftmaxSums, (c_void_p, c_void_p, ctypes.c_int64)),
    "glass_guard_mapping": (c_int, (c_void_p, ctypes.c_uint64)),
    "glass_unguard_mapping": (None, (c_int32,)),
    "glass_mapping_faults": (c_int, (c_int32,)),
    "glass_size": (c_int, (c_int32,)),
}


def levels() -> tuple[str, ...]:
    """The levels that the library has and this processor can run, best first."""
    return tuple(library().glass_levels().decode().split())


def chosen_level() -> str:
    """The best level, or the one that GLASS_LEVEL names."""
    available, level = levels(), os.environ.get("GLASS_LEVEL")
    if not level:
        return available[0]
    if level not in available:
        raise SettingError(
            f"GLASS_LEVEL is {level!r}, which cannot run here.{did_you_mean(level, available)} "
            f"Here can run: {', '.join(available)}."
        )
    return level


def requested_threads() -> tuple[int, str] | None:
    """How many threads GLASS_THREADS or else OMP_NUM_THREADS asks for, and which of them; None if neither does."""
    if threads := os.environ.get("GLASS_THREADS"):
        if not threads.isdecimal() or not 1 <= int(threads) <= MAX_THREADS:
            raise SettingError(f"GLASS_THREADS is {threads!r}; it must be a number from 1 to {MAX_THREADS}.")
        return int(threads), "GLASS_THREADS"
    openmp = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a list: a number for each level of nesting
    if openmp.isdecimal() and int(openmp) > 0:
        return min(int(openmp), MAX_THREADS), "OMP_NUM_THREADS"
    return None


def default_threads() -> int:
    """As many threads as are asked for, or else one for each fast core."""
    requested = requested_threads()
    return available().default_threads if requested is None else requested[0]


def pinning_requested() -> bool:
    """Whether GLASS_PIN_THREADS asks for pinned threads; only Linux can pin them."""
    pin = os.environ.get("GLASS_PIN_THREADS") or "0"
    if pin not in ("0", "1"):
        raise SettingError(f"GLASS_PIN_THREADS is {pin!r}; it must be 1, to pin threads to cores, or 0.")
    return pin == "1" and sys.platform == "linux"


def describe() -> dict[str, Any]:
    return {"level": chosen_level(), "levels": list(levels())}


class Engine(Shared):
    """A thread pool on one level. A forked process gets a pool of its own, because threads do not survive a fork.

    By default it has a thread for each fast core; models ask `thread_count`, which measures how many are fastest. Pinned
    threads have a core each, except for the caller's, which belongs to the caller's program and stays as it is.
    """

    def __init__(self, level: str | None = None, threads: int | None = None) -> None:
        self.level = level or chosen_level()
        self.pinned = pinning_requested()
        self.threads = threads or default_threads()
        self._handle, self._process = self._start(), os.getpid()

    def _start(self) -> int:
        placement = available().placement(self.threads) if self.pinned else None
        processors = None if placement is None else (c_int32 * self.threads)(*placement)
        handle = library().glass_open(self.level.encode(), self.threads, processors)
        if not handle:
            raise ExecutorError(f"the CPU engine cannot start {self.threads} threads on level {self.level!r}.")
        weakref.finalize(self, _close, int(handle), os.getpid()).atexit = False  # it ends with the process
        return int(handle)

    @property
    def handle(self) -> int:
        if self._process != os.getpid():
            self._handle, self._process = self._start(), os.getpid()
        return self._handle

    def run(self, native_pass: NativePass) -> None:
        if library().glass_run(self.handle, native_pass):
            raise ExecutorError(LACKS_MEMORY)

    def decode(
        self, native_pass: NativePass, scores: int, count: int, kept: Mapping[int, npt.NDArray[np.float32]]
    ) -> npt.NDArray[np.int32]:
        """Run a pass of one token a row `count` times, each time with the best token that followed: (rows, count).

        `kept`: buffers, and where to write what they hold after each pass, (count, rows, width).
        """
        best = np.empty((native_pass.token_count, count), np.int32)
        copies = (NativeKept * len(kept))(*(NativeKept(values.ctypes.data, buffer) for buffer, values in kept.items()))
        if library().glass_decode(self.handle, native_pass, scores, count, best.ctypes.data, copies, len(kept)):
            raise ExecutorError(LACKS_MEMORY)
        return best

    def matmul(
        self, matrix: NativeMatrix, rounding: ActivationRounding, inputs: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """A matrix with some tokens: (tokens, columns) to (tokens, rows)."""
        out = np.empty((len(inputs), matrix.rows), np.float32)
        if library().glass_matmul(self.handle, matrix, rounding, len(inputs), inputs.ctypes.data, out.ctypes.data):
            raise ExecutorError(LACKS_MEMORY)
        return out

    def input_gradients(self, matrix: NativeMatrix, gradients: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The gradients of a packed matrix' inputs, (tokens, columns), from those of its outputs, (tokens, rows)."""
        out = np.empty((len(gradients), matrix.columns), np.float32)
        library().glass_input_gradients(self.handle, matrix, len(gradients), gradients.ctypes.data, out.ctypes.data)
        return out

    def pack(
        self, source: FileKind, raw: npt.NDArray[np.uint8], rows: int, columns: int, order: npt.NDArray[np.int32] | None,
        out: npt.NDArray[np.uint8],
    ) -> None:  # fmt: skip
        """A file's packed rows into tiles; `order`: for each row the file's row that holds it."""
        address = None if order is None else order.ctypes.data
        sizes = int32(rows, "rows"), int32(columns, "columns")
        library().glass_pack(self.handle, source, raw.ctypes.data, *sizes, address, out.ctypes.data)

    def entropy_stats(self, scores: npt.NDArray[np.float32]) -> EntropyStats:
        """As `candidates.entropy_stats`, several times as fast. From any thread."""
        scores = np.ascontiguousarray(scores, np.float32)
        sums = library().glass_softmax_sums(self.handle, scores.ctypes.data, scores.size)
        return EntropyStats.of(sums.in_play, sums.total, sums.weighted)


def _close(handle: int, process: int) -> None:
    """End a thread pool, unless this is a fork: there its threads never were."""
    if process == os.getpid():
        library().glass_close(handle)


def packed_size(source: FileKind, rows: int, columns: int) -> int:
    return int(library().glass_packed_size(source, int32(rows, "rows"), int32(columns, "columns")))


def packed_kind(source: FileKind) -> MatrixKind:
    return MatrixKind(library().glass_packed_kind(source))


def dequantize_row(matrix: NativeMatrix, row: int) -> npt.NDArray[np.float32]:
    """One row of a matrix as floats."""
    out = np.empty(matrix.columns, np.float32)
    library().glass_dequantize_row(matrix, row, out.ctypes.data)
    return out
