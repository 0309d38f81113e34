"""What the views need to know of a model and of a run, and no more.

Whatever has these attributes can be looked into: the runtime's `Model` and `Run`, or a stand-in of a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from glassformer.blueprints import Blueprint, Head
from glassformer.checkpoint.sentence_pooling import SentenceSettings
from glassformer.decoding import Finish, GenerationConfig, Policy, Recipe, Step, StepDetail
from glassformer.decoding.policy import NOTHING
from glassformer.engine.protocol import Executor
from glassformer.ground.candidates import EntropyStats
from glassformer.ground.changes import Change
from glassformer.see.view import Floats
from glassformer.steering.library import Library
from glassformer.text import Tokenizer


class ModelLike(Protocol):
    """A model that is loaded."""

    @property
    def name(self) -> str: ...

    @property
    def opened(self) -> Any:
        """What it was loaded from."""

    @property
    def config(self) -> Any: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def settings(self) -> GenerationConfig: ...

    @property
    def blueprint(self) -> Blueprint: ...

    @property
    def head(self) -> Head: ...

    @property
    def writes(self) -> bool:
        """Whether it generates text; an encoder only reads."""

    @property
    def decoder_start_token(self) -> int | None:
        """What an encoder-decoder's target begins with."""

    @property
    def changes(self) -> Mapping[str, Change]:
        """What is changed inside it, by site."""

    @property
    def weights_digest(self) -> str:
        """A SHA-256 of its weights."""

    @property
    def library(self) -> Library:
        """Where names of steering vectors, features and tuned lenses lead."""

    @property
    def executor(self) -> Executor: ...

    @property
    def module(self) -> Any:
        """The PyTorch model."""

    @property
    def reader(self) -> Any:
        """What turns texts to states without PyTorch, as `engine.cpu.executor.CpuReader`; None where PyTorch does."""

    @property
    def sentence(self) -> SentenceSettings:
        """How its states become one vector per text."""

    @property
    def packed_module(self) -> Any:
        """The PyTorch model for passes and gradients of activations alone: packed weights may stay packed."""

    def label(self, number: int) -> str: ...

    def weight(self, name: str, row: int | Sequence[int] | None = None) -> Floats | None: ...

    def unembed(self, states: Floats) -> Floats: ...

    @property
    def entropy_stats(self) -> Callable[[Floats], EntropyStats]:
        """The fastest way to measure a row of scores."""

    def watch(self, prompt: Any, **keywords: Any) -> RunLike: ...

    def read(self, prompt: Any) -> Any:
        """A text that it reads, as `see.activations.Activations`."""

    def recipe(self, settings: GenerationConfig) -> Recipe: ...

    def policies(
        self,
        recipe: Recipe,
        ids: Sequence[int],
        *,
        seed: int | None = None,
        detail: StepDetail = NOTHING,
        negative: Sequence[int] | None = None,
    ) -> list[Policy]: ...


class RunLike(Protocol):
    """One prompt and what followed it."""

    @property
    def model(self) -> ModelLike: ...

    prompt: str
    prompt_ids: tuple[int, ...]
    recipe: Recipe
    seed: int | None
    negative: tuple[int, ...] | None
    contents: tuple[str, ...] | None
    steps: list[Step]
    text: str
    stop: str | None
    remedy: str | None
    seconds_to_first: float
    seconds: float

    @property
    def tokens_per_second(self) -> float: ...

    @property
    def settings(self) -> GenerationConfig: ...

    @property
    def finish(self) -> Finish | None: ...
