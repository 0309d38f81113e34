"""Which executor runs a model: the CPU engine where it can, PyTorch where that is asked for or must do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from glassformer.engine.protocol import ACTIVATIONS, CACHES, Executor
from glassformer.errors import CheckpointError, ExecutorError, InputError, nearest
from glassformer.opened import DTYPES, Opened
from glassformer.runtime.in_memory import InMemory

EXECUTORS = ("auto", "plain", "cpu")
Engine = TypeVar("Engine")
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class ExecutorOptions:
    """What was asked for."""

    executor: str = "auto"
    dtype: str | None = None  # that PyTorch is to compute in
    cache: str | None = None  # what the CPU engine keeps keys and values in
    activations: str | None = None  # what it rounds the inputs of packed matrices to

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise _unknown("executor", self.executor, EXECUTORS, ExecutorError)
        if self.dtype is not None and self.dtype not in DTYPES:
            raise _unknown("dtype", self.dtype, DTYPES)
        if self.executor == "cpu" and self.dtype is not None:
            raise InputError("dtype is what PyTorch computes in; the CPU engine takes weights as they are. Leave one out.")
        if not self.native and self.cache is not None:
            raise InputError("cache is the CPU engine's: PyTorch keeps keys and values as it computes. Leave one out.")
        if self.cache is not None and self.cache not in CACHES:
            raise _unknown("cache", self.cache, CACHES)
        if not self.native and self.activations is not None:
            raise InputError("activations are the CPU engine's to round: PyTorch computes in floats. Leave one out.")
        if self.activations is not None and self.activations not in ACTIVATIONS:
            raise _unknown("kind of activations", self.activations, ACTIVATIONS)

    @property
    def native(self) -> bool:
        """Whether the CPU engine may run it; a dtype means PyTorch."""
        return self.executor != "plain" and self.dtype is None


class Executors:
    """What runs one model: each made when first needed, and shared by all `Model`s over it."""

    def __init__(self, opened: Opened | InMemory, options: ExecutorOptions) -> None:
        self.opened = opened
        self.options = options

    @cached_property
    def executor(self) -> Executor:
        """What runs a model that writes."""
        if isinstance(self.opened, Opened) and (native := self._native(self._cpu_executor)) is not None:
            return native
        from glassformer.engine.plain.executor import Plain

        return Plain(self.module)

    @cached_property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        if isinstance(self.opened, InMemory) or "module" in vars(self) or self.opened.config.encoder_layers:
            return None  # in PyTorch already; or an encoder-decoder, whose states are PyTorch's to say
        return self._native(self._cpu_reader)

    @cached_property
    def module(self) -> Any:
        """The PyTorch model, with the familiar face."""
        if isinstance(self.opened, InMemory):
            return self.opened.module
        from glassformer.compat.auto import made_for
        from glassformer.compat.pretrained import chosen_dtype, load

        cls = made_for(self.opened.config.model_type, self.opened.head)
        return load(cls, self.opened, chosen_dtype(self.options.dtype)).requires_grad_(False)

    def _cpu_executor(self, opened: Opened) -> Executor:
        from glassformer.engine.cpu.executor import Cpu

        options = self.options
        return Cpu(opened.config, opened.blueprint(), opened.tensors, cache=options.cache, activations=options.activations)

    def _cpu_reader(self, opened: Opened) -> Any:
        from glassformer.engine.cpu.reader import Reader

        return Reader(opened.config, opened.blueprint("base"), opened.tensors, activations=self.options.activations)

    def _native(self, make: Callable[[Opened], Engine]) -> Engine | None:
        """What the CPU engine makes; where it cannot, None and a word, unless it was asked for by name."""
        if not self.options.native or not isinstance(self.opened, Opened):
            return None
        try:
            return make(self.opened)
        except (ExecutorError, CheckpointError) as error:
            if self.options.executor == "cpu":
                raise
            note(f"{self.opened.name} runs on PyTorch: {error}")
            return None


def _unknown(what: str, given: object, known: tuple[str, ...], kind: type[Exception] = InputError) -> Exception:
    return kind(f"there is no {what} {given!r}.{nearest(str(given), known)} Known: {', '.join(known)}.")
