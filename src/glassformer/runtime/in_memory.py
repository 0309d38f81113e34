"""A model that is in memory already, where a checkpoint would be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints import Blueprint, Head, blueprint
from glassformer.checkpoint.sentence import Sentence
from glassformer.decoding import GenerationConfig
from glassformer.text import Tokenizer


@dataclass(frozen=True)
class InMemory:
    """A model of an Auto class, and its tokenizer, with what `Opened` would tell of them."""

    module: Any
    tokenizer: Tokenizer
    sentence: Sentence = field(default_factory=Sentence)

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def settings(self) -> GenerationConfig:
        settings: GenerationConfig = self.module.generation_config
        return settings

    @property
    def head(self) -> Head:
        return getattr(self.module, "head", "base")

    @property
    def kind(self) -> str:
        return str(self.module.dtype).removeprefix("torch.")

    @property
    def packed(self) -> bool:
        return False

    def blueprint(self) -> Blueprint:
        return blueprint(self.config, self.head)
