"""A cubin's kernel, launched cooperatively through CUDA's driver: torch has no way to do that."""

from __future__ import annotations

import ctypes
import sys

from glassformer.ground.errors import ExecutorError
from glassformer.ground.ownership import Shared

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # of CUfunction_attribute
REGISTERS, LOCAL_BYTES = 4, 3


class CooperativeKernel(Shared):
    """One kernel of a cubin, whose blocks may wait for each other; loaded into the current context, which torch made."""

    def __init__(self, cubin: bytes, name: str, threads: int, shared_bytes: int) -> None:
        self._driver = _load_driver()
        self._threads, self._shared_bytes = threads, shared_bytes
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(self._module), cubin)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module, name.encode())
        self._call("cuFuncSetAttribute", self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)

    def blocks_per_multiprocessor(self) -> int:
        """How many blocks can be resident on one multiprocessor."""
        blocks = ctypes.c_int()
        size = ctypes.c_size_t(self._shared_bytes)
        call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self._call(call, ctypes.byref(blocks), self._function, self._threads, size)
        return blocks.value

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), number, self._function)
        return value.value

    def launch(self, blocks: int, parameter: ctypes.Structure, stream: int) -> None:
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(parameter))
        grid, block = (blocks, 1, 1), (self._threads, 1, 1)
        self._call(
            "cuLaunchCooperativeKernel",
            self._function,
            *grid,
            *block,
            self._shared_bytes,
            ctypes.c_void_p(stream),
            parameters,
        )

    def _call(self, name: str, *arguments: object) -> None:
        if result := getattr(self._driver, name)(*arguments):
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(result, ctypes.byref(text))
            reason = (text.value or b"unknown error").decode()
            raise ExecutorError(f"the GPU engine's persistent kernel cannot run: {name} says '{reason}'.")


def _load_driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise ExecutorError("the GPU engine needs an NVIDIA GPU and its driver, and none was found.") from error
