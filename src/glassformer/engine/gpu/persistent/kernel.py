"""kernel.cu as Python has it: its parameter, compiled at run time with NVRTC, and launched through CUDA's driver.

NVRTC comes with torch, which cannot launch a kernel whose blocks wait for each other: that is why the driver is called here.
Compiled kernels are kept on disk. A cubin's name is a hash of everything it depends on, so that another source, shape, card
or compiler means another file.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from ctypes import c_int, c_longlong, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from threading import Thread
from typing import Protocol

import torch

from glassformer.engine.gpu.device import free_memory
from glassformer.engine.gpu.persistent.schedule import Schedule
from glassformer.ground.errors import ExecutorError
from glassformer.ground.files import home, write_bytes
from glassformer.ground.ownership import Shared

SOURCE = Path(__file__).with_name("kernel.cu")
DEVICE = SOURCE.with_name("device.h")  # what all kernels include
COMPILERS = ("libnvrtc.so.13", "libnvrtc.so.12", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll")
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # of CUfunction_attribute
THREADS = 288
NO_ID = -1  # chosen where the logits are not numbers


class KernelError(IntEnum):
    NONE = 0
    TIMED_OUT = 1


def timed_out(seconds: float, block: int, step: int) -> ExecutorError:
    return ExecutorError(
        f"the persistent kernel gave up after {seconds:g} seconds of waiting (block {block}, step {step}): another program "
        "may hold the GPU. Try again, or use another executor."
    )


class Launch(ctypes.Structure):
    """What one launch is given; see the comments at kernel.cu's Launch."""

    _fields_ = [
        ("stream", c_void_p),
        ("stream_stride", c_uint64),
        *((name, c_void_p) for name in ("embedding", "embedding_scales", "embedding_outer_scales", "embedding_high_bits")),
        *((name, c_void_p) for name in ("norms", "head_norms", "qkv_bias", "rotation", "pool", "page_table", "exchange")),
        *((name, c_void_p) for name in ("given_ids", "stop_ids", "chosen_ids", "scores", "residuals", "status")),
        ("patience", c_longlong),
        *((name, c_int) for name in ("start", "steps", "given", "stops", "scores_from")),
        ("tag", c_uint32),
        ("absent_block", c_int),
    ]


@dataclass(frozen=True)
class Card:
    """What the kernel needs to know of a GPU."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int  # that one block may have
    free_bytes: float = math.inf

    @classmethod
    def of(cls, device: torch.device) -> Card:
        properties = torch.cuda.get_device_properties(device)
        shared_bytes: int = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
        capability = (properties.major, properties.minor)
        return cls(properties.name, capability, properties.multi_processor_count, shared_bytes, free_memory(device))


class Kernel(Protocol):
    """A persistent kernel, compiled for a schedule."""

    def blocks_per_multiprocessor(self) -> int: ...
    def launch(self, blocks: int, parameter: ctypes.Structure, stream: int) -> None: ...


def load_kernel(schedule: Schedule, card: Card) -> Kernel:
    return KernelBuild(schedule, card).load(schedule, card)


class KernelBuild:
    """kernel.cu, which a thread compiles for a schedule: beside what the program does meanwhile."""

    def __init__(self, schedule: Schedule, card: Card) -> None:
        self._cubin: Future[bytes] = Future()
        self._definitions, (major, minor) = schedule.definitions(), card.capability
        self._architecture = f"sm_{major}{minor}"
        Thread(target=self._compile, name="glass-kernel", daemon=True).start()

    def _compile(self) -> None:
        try:
            self._cubin.set_result(compiled(self._definitions, self._architecture))
        except BaseException as error:
            self._cubin.set_exception(error)

    def load(self, schedule: Schedule, card: Card) -> Kernel:
        assert schedule.definitions() == self._definitions
        return CooperativeKernel(self._cubin.result(), "decode", THREADS, card.shared_bytes)


class CooperativeKernel(Shared):
    """One kernel of a cubin, whose blocks may wait for each other; loaded into the current context, which torch made."""

    def __init__(self, cubin: bytes, name: str, threads: int, shared_bytes: int) -> None:
        self._driver = load_driver()
        self._threads, self._shared_bytes = threads, shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._call("cuFuncSetAttribute", self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)

    def blocks_per_multiprocessor(self) -> int:
        """How many blocks can be resident on one multiprocessor."""
        blocks, size = ctypes.c_int(), ctypes.c_size_t(self._shared_bytes)
        call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._call(call, ctypes.byref(blocks), self._function, self._threads, size)
        return blocks.value

    def launch(self, blocks: int, parameter: ctypes.Structure, stream: int) -> None:
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        sizes = (blocks, 1, 1, self._threads, 1, 1, self._shared_bytes)  # of the grid, of a block, and shared memory
        self._call("cuLaunchCooperativeKernel", self._function, *sizes, ctypes.c_void_p(stream), parameters)

    def _call(self, name: str, *arguments: object) -> None:
        if result := getattr(self._driver, name)(*arguments):
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(text))
            reason = (text.value or b"unknown error").decode()
            raise ExecutorError(f"the GPU engine's persistent kernel cannot run: {name} says '{reason}'.")


def load_driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError as error:
        raise ExecutorError("the GPU engine needs an NVIDIA GPU and its driver, and none was found.") from error


def compiled(definitions: Mapping[str, str], architecture: str, path: Path = SOURCE, *more_options: str) -> bytes:
    """The cubin of a kernel with these constants for an architecture such as "sm_90": kept, or compiled now."""
    source, nvrtc = path.read_text("utf-8"), _nvrtc()
    source = source.replace(f'#include "{DEVICE.name}"', DEVICE.read_text("utf-8"))  # NVRTC looks into no folder
    options = [
        "-std=c++17",
        "-default-device",
        f"--gpu-architecture={architecture}",
        *more_options,
        *(f"-D{name}={value}" for name, value in definitions.items()),
    ]
    key = hashlib.sha256("\0".join([source, _version(nvrtc), *options]).encode()).hexdigest()[:16]
    kept = home() / "gpu" / f"persistent-{key}.cubin"
    if not os.environ.get("GLASS_REBUILD"):
        with suppress(OSError):
            return kept.read_bytes()
    cubin = _compile(nvrtc, source, options)
    with suppress(OSError):  # a kernel that cannot be kept is compiled again next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(kept, cubin)
    return cubin


def _nvrtc() -> ctypes.CDLL:
    """NVRTC from the library path, or from the packages that torch depends on."""
    folders = [Path(folder) / "nvidia" for folder in sys.path if folder]
    shipped = (str(path) for name in COMPILERS for folder in folders for path in folder.glob(f"*/lib/{name}"))
    for name in (*COMPILERS, *shipped):
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise ExecutorError("NVRTC, which compiles the GPU engine's kernel, was not found. Install a build of torch for CUDA.")


def _version(nvrtc: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _compile(nvrtc: ctypes.CDLL, source: str, options: list[str]) -> bytes:
    program = ctypes.c_void_p()
    _check(nvrtc, nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if result := nvrtc.nvrtcCompileProgram(program, len(options), encoded):
            error = ExecutorError(
                f"the GPU engine's persistent kernel could not be compiled ({_error_text(nvrtc, result)})."
            )
            error.add_note(_read(nvrtc, program, "ProgramLog").decode("utf-8", "replace").rstrip("\0"))
            raise error
        return _read(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(nvrtc: ctypes.CDLL, result: int) -> None:
    if result:
        raise ExecutorError(f"NVRTC failed: {_error_text(nvrtc, result)}.")


def _error_text(nvrtc: ctypes.CDLL, result: int) -> str:
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    text: bytes = nvrtc.nvrtcGetErrorString(result)
    return text.decode()
