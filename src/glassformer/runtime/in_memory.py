"""A model that is in memory already, in place of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints import Blueprint, Head, blueprint
from glassformer.checkpoint.sentence_pooling import SentenceSettings
from glassformer.decoding import GenerationConfig
from glassformer.text import Tokenizer


@dataclass(frozen=True)
class InMemory:
    """A model of an Auto class and its tokenizer, with the attributes of an `ModelFiles`."""

    module: Any
    tokenizer: Tokenizer
    sentence: SentenceSettings = field(default_factory=SentenceSettings)

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
        return getattr(self.module, "head_kind", "base")

    @property
    def kind(self) -> str:
        return str(self.module.dtype).removeprefix("torch.")

    @property
    def kind_text(self) -> str:
        return self.kind

    @property
    def packed(self) -> bool:
        return False

    def blueprint(self) -> Blueprint:
        return blueprint(self.config, self.head)
