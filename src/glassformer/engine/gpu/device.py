"""Which GPU the engine runs on, whether it can, and what its failures mean. Imports torch only where it is asked."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from glassformer.blueprints import Blueprint
from glassformer.ground.errors import ExecutorError, install, spell
from glassformer.ops.activate import LearnedActivate
from glassformer.ops.attend import Attend
from glassformer.ops.experts import ExpertGate
from glassformer.ops.linear import LinearMap
from glassformer.ops.norm import Norm
from glassformer.ops.position import Position

if TYPE_CHECKING:
    import torch

OLDEST = (8, 0)  # compute capability: Ampere, which multiplies bfloat16
RESERVE = 10**9  # bytes beside the weights, at least: for keys and values, and for passes
DEVICE_FAILURES = ("CUDA error", "Triton Error [CUDA]")  # what torch and Triton say when a card fails or is gone
INSTALL = f"Install it: {install('triton')}."


def has_driver() -> bool:
    """Whether there is an NVIDIA driver at all: known in microseconds, without torch."""
    if sys.platform == "win32":
        return Path(os.environ.get("SYSTEMROOT", "C:/Windows"), "System32", "nvcuda.dll").exists()
    return any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))


def blueprint_reason(blueprint: Blueprint) -> str | None:
    """Why the GPU engine cannot run a model, in one sentence; None if it can."""
    reasons = {
        "has blocks that share keys or read tokens themselves": not (blueprint.blocks_stand_alone or blueprint.state_size),
        "has heads of several sizes": bool(blueprint.key_shapes()),
        "has experts": any(blueprint.ops_of(ExpertGate)),
        "has attention sinks": any(op.weights for op in blueprint.ops_of(Attend)),
        "remembers latents in place of keys and values": any(
            op.cached_shape(blueprint.ops).latent for op in blueprint.ops_of(Attend)
        ),
        "scales its scores by position": any("position_scale" in op.options for op in blueprint.ops_of(Attend)),
        "may have global tokens": blueprint.has_global_tokens,
        "attends in chunks": any("chunk" in op.options for op in blueprint.ops_of(Attend)),
        "takes distances off its scores": any("slopes" in op.options for op in blueprint.ops_of(Attend)),
        "has an activation with learned numbers": any(blueprint.ops_of(LearnedActivate)),
        "adds positions to a projection": any(
            op.reads_table and isinstance(blueprint.ops[op.inputs[0]], LinearMap) for op in blueprint.ops_of(Position)
        ),
        "adds positions to a norm's result": any(
            op.reads_table and isinstance(blueprint.ops[op.inputs[0]], Norm) for op in blueprint.ops_of(Position)
        ),
        "caps its scores softly": any(op.options.get("softcap") for op in blueprint.ops),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    return reason and (
        f"the GPU engine cannot run a model that {reason}. Use {spell('executor', 'cpu')} or {spell('executor', 'plain')}."
    )


def unusable_reason() -> str | None:
    """Why the GPU engine cannot run here, in one sentence; None if it can."""
    if not has_driver():
        return f"the GPU engine needs an NVIDIA GPU, and there is no NVIDIA driver here. Use {spell('executor', 'cpu')}."
    if find_spec("torch") is None:
        return f"the GPU engine needs PyTorch, which is not installed. {INSTALL}"
    with nullcontext() if "torch" in sys.modules else meanwhile(create_context):
        import torch

    if torch.version.cuda is None:
        return "the GPU engine needs a PyTorch with CUDA, and this one is built without. Install torch from pytorch.org."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a driver that is too old, for instance: then there is none
        found = torch.cuda.is_available()
    if not found:
        return "the GPU engine needs an NVIDIA GPU, and PyTorch finds none. Check nvidia-smi and CUDA_VISIBLE_DEVICES."
    try:
        capability = torch.cuda.get_device_capability()
    except RuntimeError as error:  # in the hands of another program, or gone
        return _failure(error)
    if capability < OLDEST:
        return (
            f"the GPU engine needs compute capability {_dotted(OLDEST)} or newer, and {torch.cuda.get_device_name()} has "
            f"{_dotted(capability)}. Use {spell('executor', 'plain')}."
        )
    if find_spec("triton") is None:
        return f"the GPU engine needs Triton, which is not installed. {INSTALL}"
    return None


def memory_reason(needed: int) -> str | None:
    """Why a model of `needed` bytes does not fit a usable GPU; None if it does."""
    import torch

    try:
        free = free_memory(torch.device("cuda", torch.cuda.current_device()))
    except RuntimeError as error:
        return _failure(error)
    if needed + RESERVE <= free:
        return None
    return (
        f"the GPU engine needs {(needed + RESERVE) / 1e9:.1f} GB for this model, and {free / 1e9:.1f} GB of the GPU's "
        "memory are free. Close other programs that use it, or take smaller weights."
    )


def _failure(error: RuntimeError) -> str:
    return f"the GPU cannot be used: {_first_line(error)}. Check nvidia-smi, or use {spell('executor', 'cpu')}."


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def gpu() -> torch.device:
    """The GPU to run on; an error that says why if there is none."""
    if (reason := unusable_reason()) is not None:
        raise ExecutorError(reason)
    import torch

    return torch.device("cuda", torch.cuda.current_device())


def free_memory(device: torch.device) -> int:
    """Bytes that can still be allocated, those that torch holds unused included."""
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def describe() -> tuple[str, int]:
    """The name of a usable GPU, and how many bytes of its memory are free."""
    import torch

    return torch.cuda.get_device_name(), free_memory(gpu())


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread that is only for speed: where it fails, what needs it does it itself."""

    def attempt() -> None:
        with suppress(Exception):
            work()

    thread = Thread(target=attempt, name=f"glassformer-{work.__name__}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def create_context() -> None:
    """The driver's context of the first GPU, which torch takes over; without torch, so that it can be imported meanwhile."""
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def read_triton_key() -> None:
    """The hash of Triton's own files, under which it keeps what it has compiled: it remembers that."""
    from triton.runtime.cache import triton_key

    triton_key()


@contextmanager
def device_errors(what: str) -> Iterator[None]:
    """Around work on the device: its failures as errors that a person can read."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ExecutorError(
            f"the GPU lacks memory for {what}. Close other programs that use it, or use smaller weights or fewer rows."
        ) from error
    except RuntimeError as error:
        if isinstance(error, ExecutorError) or not any(sign in str(error) for sign in DEVICE_FAILURES):
            raise
        raise ExecutorError(f"the GPU failed at {what}: {_first_line(error)}. Load the model again.") from error
    except Exception as error:
        if not type(error).__module__.startswith("triton."):
            raise
        raise ExecutorError(
            f"Triton could not compile a kernel for {what}: {_first_line(error)}. Use {spell('executor', 'plain')}, or "
            "another Triton."
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
