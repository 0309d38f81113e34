"""Gemma: Llama's blocks with scaled embeddings and norms that add one to their weights."""

from __future__ import annotations

from typing import ClassVar

from glassformer.blueprints import llama as shared
from glassformer.blueprints.gemma import Config
from glassformer.families import llama
from glassformer.families.shared.head_modules import TokenScores
from glassformer.layers import Block, OffsetRMSNorm


class GemmaDecoderLayer(llama.LlamaDecoderLayer):
    norm_class = OffsetRMSNorm


class GemmaModel(llama.LlamaModel):
    family = "Gemma"
    config_class: ClassVar[type[shared.Config]] = Config
    layer: ClassVar[type[Block]] = GemmaDecoderLayer
    norm_class = OffsetRMSNorm
    heads = {**llama.LlamaModel.heads, "token": ("", TokenScores)}

    def __init__(self, c: shared.Config) -> None:
        super().__init__(c)
        self.embed_tokens.scale = c.hidden_size**0.5


Model = GemmaModel
