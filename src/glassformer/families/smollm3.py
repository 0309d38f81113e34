"""SmolLM3: Llama's blocks, some of which have no positions.

Shapes: query, key (batch, heads, length, head_size).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from glassformer.blueprints.smollm3 import Config
from glassformer.families import llama
from glassformer.families.shared.head_modules import TokenScores
from glassformer.layers import ForwardPass


class SmolLM3Attention(llama.LlamaAttention):
    def __init__(self, c: Any, layer: int) -> None:
        super().__init__(c, layer)
        self.has_rope = c.has_rope(layer)

    def prepare_query_key(self, query: Tensor, key: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor]:
        return super().prepare_query_key(query, key, p) if self.has_rope else (query, key)


class SmolLM3DecoderLayer(llama.LlamaDecoderLayer):
    attention = SmolLM3Attention


class SmolLM3Model(llama.LlamaModel):
    family = "SmolLM3"
    config_class = Config
    layer = SmolLM3DecoderLayer
    heads = {**llama.LlamaModel.heads, "token": ("", TokenScores)}


Model = SmolLM3Model
