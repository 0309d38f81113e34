"""Triton's interpreter, which runs kernels on the CPU, mended: import this before anything imports triton.

Triton 3.6 makes an int of an array of one element, which NumPy 2.4 refuses; it takes the bits of bfloat16 for integers in
`tl.dot`, and rounds to bfloat16 towards zero. Products are summed as tensor cores do it, 16 at a time, so that they do not
depend on a tile's shape. NumPy sorts, which takes a ten-thousandth of the time of an interpreted `tl.sort`. NumPy's warnings
about infinities are silent, as a device is.
"""

from __future__ import annotations

import os
import sys
from typing import Any

assert "triton" not in sys.modules or os.environ.get("TRITON_INTERPRET") == "1", (
    "triton was imported without its interpreter"
)
os.environ["TRITON_INTERPRET"] = "1"

import numpy as np  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

_patch_tensor = interpreter._patch_lang_tensor
_cast = interpreter.InterpreterBuilder.cast_impl
_call = interpreter.InterpretedFunction.__call__
_launch = interpreter.GridExecutor.__call__


def _patch_tensor_for_numpy(tensor: Any, scope: Any) -> None:
    _patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


def _exact_floats(handle: Any) -> Any:
    """A handle's numbers in float64."""
    if handle.dtype.scalar == tl.bfloat16:
        return (handle.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return handle.data.astype(np.float64)


def _dot(self: Any, a: Any, b: Any, sums: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    left, right, total = _exact_floats(a), _exact_floats(b), sums.data
    for at in range(0, left.shape[-1], 16):
        total = (left[..., at : at + 16] @ right[..., at : at + 16, :] + total).astype(sums.data.dtype)
    return interpreter.TensorHandle(total, sums.dtype.scalar)


def _cast_to_nearest(self: Any, source: Any, dtype: Any) -> Any:
    if source.dtype.scalar == tl.float32 and dtype.scalar == tl.bfloat16:
        bits = np.ascontiguousarray(source.data).view(np.uint32)
        rounded = (bits + (0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return interpreter.TensorHandle(np.where(np.isnan(source.data), np.uint16(0x7FC0), rounded), tl.bfloat16)
    return _cast(self, source, dtype)


def _sort(x: Any, dim: Any = None, descending: Any = False) -> Any:
    ascending = np.sort(x.handle.data, axis=-1)
    return tl.tensor(interpreter.TensorHandle(np.flip(ascending, -1) if descending else ascending, x.handle.dtype), x.type)


def _launch_silently(self: Any, *args: Any, **kwargs: Any) -> Any:
    with np.errstate(all="ignore"):
        return _launch(self, *args, **kwargs)


def _call_device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel around a function of ours has patched the language already, which takes a third of the time."""
    if self.fn.__module__.startswith("triton."):
        return _call(self, *args, **kwargs)
    return self.rewrite()(*args, **kwargs)


if interpreter._patch_lang_tensor.__module__ != __name__:
    interpreter._patch_lang_tensor = _patch_tensor_for_numpy
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter.InterpreterBuilder.cast_impl = _cast_to_nearest
    interpreter.GridExecutor.__call__ = _launch_silently
    tl.sort = _sort
    interpreter.InterpretedFunction.__call__ = _call_device_function
