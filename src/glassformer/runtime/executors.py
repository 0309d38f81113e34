"""Which executor runs a model: the CPU engine if it can, otherwise PyTorch; or the one that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint
from glassformer.candidates import EntropyStats, entropy_stats
from glassformer.engine.protocol import ACTIVATIONS, CACHES, Executor
from glassformer.errors import CheckpointError, ExecutorError, InputError, did_you_mean
from glassformer.opened import DTYPES, OpenedModel
from glassformer.runtime.in_memory import InMemory

if TYPE_CHECKING:
    from glassformer.engine.cpu.executor import CpuExecutor

EXECUTORS = ("auto", "plain", "cpu")
Native = TypeVar("Native")
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class ExecutorOptions:
    """The arguments of `load` that are about executors."""

    executor: str = "auto"
    dtype: str | None = None  # that PyTorch computes in
    cache: str | None = None  # the format of the CPU engine's KV cache
    activations: str | None = None  # what it rounds the inputs of quantized matrices to

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise _unknown_value("executor", self.executor, EXECUTORS, ExecutorError)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise _unknown_value("dtype", self.dtype, DTYPES)
        if self.executor == "cpu" and self.dtype is not None:
            raise InputError("dtype is what PyTorch computes in; the CPU engine takes weights as they are. Leave one out.")
        if not self.native and self.cache is not None:
            raise InputError("cache is for the CPU engine: PyTorch keeps keys and values in its own dtype. Leave one out.")
        if self.cache is not None and self.cache not in CACHES:
            raise _unknown_value("cache", self.cache, CACHES)
        if not self.native and self.activations is not None:
            raise InputError("activations are for the CPU engine: PyTorch computes in floats. Leave one out.")
        if self.activations is not None and self.activations not in ACTIVATIONS:
            raise _unknown_value("kind of activations", self.activations, ACTIVATIONS)

    @property
    def native(self) -> bool:
        """Whether the CPU engine may run it; a dtype means PyTorch."""
        return self.executor != "plain" and self.dtype is None


class Executors:
    """The executors of one model: each created when first needed, and shared by all `Model`s over it."""

    def __init__(self, opened: OpenedModel | InMemory, options: ExecutorOptions) -> None:
        self.opened = opened
        self.options = options

    @cached_property
    def blueprint(self) -> Blueprint:
        return self.opened.blueprint()

    @cached_property
    def executor(self) -> Executor:
        """What runs a model that generates text."""
        if self.cpu_executor is not None:
            return self.cpu_executor
        from glassformer.engine.plain.executor import PlainExecutor

        return PlainExecutor(self.module)

    @cached_property
    def cpu_executor(self) -> CpuExecutor | None:
        """The same if the CPU engine runs it; None where PyTorch does."""
        return self._native(self._cpu_executor)

    @property
    def entropy_stats(self) -> Callable[[npt.NDArray[np.float32]], EntropyStats]:
        """The fastest `entropy_stats` there is for the executor's scores."""
        return entropy_stats if self.cpu_executor is None else self.cpu_executor.entropy_stats

    @cached_property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        if isinstance(self.opened, InMemory) or "module" in vars(self) or self.opened.config.encoder_layers:
            return None  # in PyTorch already; or an encoder-decoder, whose states come from PyTorch
        return self._native(self._cpu_reader)

    @cached_property
    def module(self) -> Any:
        """The PyTorch model, an object of the compatible API."""
        if isinstance(self.opened, InMemory):
            return self.opened.module
        from glassformer.compat.auto import model_class_for_head
        from glassformer.compat.pretrained import load, parse_dtype

        cls = model_class_for_head(self.opened.config.model_type, self.opened.head)
        return load(cls, self.opened, parse_dtype(self.options.dtype)).requires_grad_(False)

    def _cpu_executor(self, opened: OpenedModel) -> CpuExecutor:
        from glassformer.engine.cpu.executor import CpuExecutor
        from glassformer.engine.cpu.thread_count import fastest_engine

        return CpuExecutor(
            opened.config, self.blueprint, opened.tensors, cache=self.options.cache, activations=self.options.activations,
            engine=fastest_engine(),
        )  # fmt: skip

    def _cpu_reader(self, opened: OpenedModel) -> Any:
        from glassformer.engine.cpu.reader import CpuReader
        from glassformer.engine.cpu.thread_count import fastest_engine

        return CpuReader(
            opened.config, opened.blueprint("base"), opened.tensors, activations=self.options.activations,
            engine=fastest_engine(),
        )  # fmt: skip

    def _native(self, make: Callable[[OpenedModel], Native]) -> Native | None:
        """What `make` builds with the CPU engine; None and a note where it cannot, unless it was asked for by name."""
        if not self.options.native or not isinstance(self.opened, OpenedModel):
            return None
        self.opened.check_sizes()
        try:
            return make(self.opened)
        except (ExecutorError, CheckpointError) as error:
            if self.options.executor == "cpu":
                raise
            note(f"{self.opened.name} runs on PyTorch: {error}")
            return None


def _unknown_value(what: str, value: str, known: tuple[str, ...], error: type[Exception] = InputError) -> Exception:
    return error(f"there is no {what} {value!r}.{did_you_mean(value, known)} Known: {', '.join(known)}.")
