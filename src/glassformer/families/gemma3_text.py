"""Gemma 3, text: Gemma 2's blocks with norms on queries and keys instead of soft caps, and two RoPEs: for near and far.

Shapes: query, key (batch, heads, length, head_size).
"""

from __future__ import annotations

from torch import Tensor

from glassformer.blueprints.gemma3_text import Config
from glassformer.families import gemma2
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.two_ropes import TwoRopes, TwoRopesAttention
from glassformer.layers import ForwardPass, OffsetRMSNorm


class Gemma3Attention(TwoRopesAttention, gemma2.Gemma2Attention):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.q_norm = OffsetRMSNorm(c.head_dim, c.rms_norm_eps)
        self.k_norm = OffsetRMSNorm(c.head_dim, c.rms_norm_eps)

    def prepare_query_key(self, query: Tensor, key: Tensor, p: ForwardPass) -> tuple[Tensor, Tensor]:
        return super().prepare_query_key(self.q_norm(query), self.k_norm(key), p)


class Gemma3DecoderLayer(gemma2.Gemma2DecoderLayer):
    attention = Gemma3Attention


class Gemma3TextModel(TwoRopes, gemma2.Gemma2Model):
    family = "Gemma3"
    config_class = Config
    layer = Gemma3DecoderLayer
    class_suffixes = {"ForSequenceClassification": "TextForSequenceClassification"}
    heads = {**Decoder.heads, "causal": ("lm_head", gemma2.CappedLMHead)}


Model = Gemma3TextModel
