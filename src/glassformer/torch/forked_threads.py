"""PyTorch in a forked process: its OpenMP threads.

PyTorch and the libraries below it share their work among OpenMP's threads, which do not survive a fork; the child would
wait for them for ever. OpenMP 5 has a call that ends them, made here before each fork: both processes start new ones when
they need them. Where the library lacks it, PyTorch takes one thread in the child, as in its own data loaders' workers.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

SYSTEM_LIBRARIES = ("libgomp.so.1", "libiomp5.so", "libomp.so")
HARD_PAUSE = 2  # OpenMP's omp_pause_hard: end the threads


def _pause_functions() -> list[Any]:
    """The call of each OpenMP library that PyTorch has loaded."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return []
    libraries = sorted(Path(torch.__file__).parent.glob("lib/lib*omp*"))
    functions = []
    for name in (*map(str, libraries), *SYSTEM_LIBRARIES):
        with suppress(OSError, AttributeError):  # it is not loaded, or older than OpenMP 5
            functions.append(ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).omp_pause_resource_all)
    return functions


PAUSE_FUNCTIONS = _pause_functions()


def end_threads() -> None:
    """End the threads that work for this one."""
    for pause in PAUSE_FUNCTIONS:
        pause(HARD_PAUSE)


def use_one_thread() -> None:
    if not PAUSE_FUNCTIONS and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=end_threads, after_in_child=use_one_thread)
