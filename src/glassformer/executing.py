"""Which executor runs a model: the CPU engine where it can, PyTorch where that is asked for or must do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from glassformer.blueprints import Blueprint
from glassformer.engine.protocol import ACTIVATIONS, CACHES, Executor
from glassformer.errors import CheckpointError, ExecutorError, InputError, nearest
from glassformer.opening import DTYPES, Opened

EXECUTORS = ("auto", "plain", "cpu")
Made = TypeVar("Made")
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class Choice:
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

    def engine(self, opened: Opened, blueprint: Blueprint) -> Executor | None:
        """The CPU engine over a model that writes; None where PyTorch is to run it."""

        def make() -> Executor:
            from glassformer.engine.cpu.executor import Cpu

            return Cpu(opened.config, blueprint, opened.tensors, cache=self.cache, activations=self.activations)

        return self._unless_impossible(make, opened.name)

    def reader(self, opened: Opened) -> Any:
        """The CPU engine over a model's base, which turns texts to states; None where PyTorch is to run it."""
        if opened.config.encoder_layers:
            return None  # what an encoder-decoder's states are is PyTorch's to say

        def make() -> Any:
            from glassformer.engine.cpu.reader import Reader

            return Reader(opened.config, opened.blueprint("base"), opened.tensors, activations=self.activations)

        return self._unless_impossible(make, opened.name)

    def _unless_impossible(self, make: Callable[[], Made], name: str) -> Made | None:
        """What the CPU engine makes; where it cannot, None and a word, unless it was asked for by name."""
        if not self.native:
            return None
        try:
            return make()
        except (ExecutorError, CheckpointError) as error:
            if self.executor == "cpu":
                raise
            note(f"{name} runs on PyTorch: {error}")
            return None


def _unknown(what: str, given: object, known: tuple[str, ...], kind: type[Exception] = InputError) -> Exception:
    return kind(f"there is no {what} {given!r}.{nearest(str(given), known)} Known: {', '.join(known)}.")
