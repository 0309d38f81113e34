"""Marian: BART's blocks, with sinusoidal positions and no norm of the embeddings.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from glassformer.blueprints.bart import Config as BartConfig
from glassformer.blueprints.marian import Config
from glassformer.families import bart
from glassformer.layers import SinusoidalEmbedding


class MarianStack(bart.BartStack):
    def add_positions(self, c: BartConfig) -> None:
        self.embed_positions = SinusoidalEmbedding(c.max_position_embeddings, c.hidden_size)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.embed_positions(positions)


class MarianModel(bart.BartModel):
    family = "Marian"
    config_class: ClassVar[type[BartConfig]] = Config
    heads = {"seq2seq": ("", bart.BartLMHead)}
    class_suffixes = {"ForConditionalGeneration": "MTModel"}
    shifts_source = False
    stack_class = MarianStack

    def embed(self, ids: Tensor | None, vectors: Tensor | None) -> Tensor:
        """As the field has it, a target's vectors are scaled here, and a source's are expected to be."""
        return super().embed(ids, None if vectors is None else vectors * self.config.scale)


Model = MarianModel
