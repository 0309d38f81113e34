"""Qwen3: Llama's blocks, with a norm on each head's query and key before RoPE.

Shapes: query, key (batch, heads, length, head_size).
"""

from __future__ import annotations

from torch import Tensor

from glassformer.blueprints import llama as shared
from glassformer.blueprints.qwen3 import Config
from glassformer.families import llama
from glassformer.layers import ForwardPass, RMSNorm


class Qwen3Attention(llama.LlamaAttention):
    def __init__(self, c: shared.Config, layer: int) -> None:
        super().__init__(c, layer)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps)

    def prepare_query_key(self, query: Tensor, key: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor]:
        return super().prepare_query_key(self.q_norm(query), self.k_norm(key), p)


class Qwen3DecoderLayer(llama.LlamaDecoderLayer):
    attention = Qwen3Attention


class Qwen3Model(llama.LlamaModel):
    family = "Qwen3"
    config_class = Config
    layer = Qwen3DecoderLayer


Model = Qwen3Model
