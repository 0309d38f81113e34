"""kernel.cu compiled at run time with NVRTC, which comes with torch; compiled kernels are kept on disk.

A cubin's name is a hash of everything it depends on, so that another source, shape, card or compiler means another file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from glassformer.ground.errors import ExecutorError
from glassformer.ground.files import write_bytes

SOURCE = Path(__file__).with_name("kernel.cu")
LIBRARY_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll")


def compiled(definitions: Mapping[str, str], architecture: str) -> bytes:
    """The cubin of kernel.cu with these constants for an architecture such as "sm_90": kept, or compiled now."""
    source, nvrtc = SOURCE.read_text("utf-8"), _nvrtc()
    options = [
        "-std=c++17",
        "-default-device",
        f"--gpu-architecture={architecture}",
        *(f"-D{name}={value}" for name, value in definitions.items()),
    ]
    key = hashlib.sha256("\0".join([source, _version(nvrtc), *options]).encode()).hexdigest()[:16]
    path = _cache_folder() / f"persistent-{key}.cubin"
    if not os.environ.get("GLASS_REBUILD"):
        with suppress(OSError):
            return path.read_bytes()
    cubin = _compile(nvrtc, source, options)
    with suppress(OSError):  # a kernel that cannot be kept is compiled again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, cubin)
    return cubin


def _cache_folder() -> Path:
    from glassformer.ground.files import home

    return home() / "gpu"


def _nvrtc() -> ctypes.CDLL:
    """NVRTC from the library path, or from the packages that torch depends on."""
    folders = [Path(folder) / "nvidia" for folder in sys.path if folder]
    shipped = (str(path) for name in LIBRARY_NAMES for folder in folders for path in folder.glob(f"*/lib/{name}"))
    for name in (*LIBRARY_NAMES, *shipped):
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
