"""Gemma 2: Gemma's blocks with norms before and after, windows in every other one, and soft caps on scores.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from glassformer.blueprints.gemma2 import Config
from glassformer.families import gemma, llama
from glassformer.families.shared.head_modules import LMHead
from glassformer.families.shared.post_norms import PostNormAttention, PostNormBlock, PostNormMLP
from glassformer.layers import ForwardPass, GatedMLP, OffsetRMSNorm, soft_cap


class Gemma2Attention(PostNormAttention, llama.LlamaAttention):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.scale = c.scale
        self.softcap = c.attn_logit_softcapping


class Gemma2MLP(PostNormMLP, GatedMLP):
    pass


class Gemma2DecoderLayer(PostNormBlock):
    printed_name = "DecoderLayer"
    attention: ClassVar[type[Gemma2Attention]] = Gemma2Attention

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = self.attention(c, layer)
        self.mlp = Gemma2MLP(c.hidden_size, c.intermediate_size, c.hidden_act)
        self.input_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.pre_feedforward_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_feedforward_layernorm = OffsetRMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        update = self.self_attn(self.input_layernorm(x), p)
        x = self.add_normed(x, update, self.post_attention_layernorm, p, "attention", "middle")
        update = self.mlp(self.pre_feedforward_layernorm(x), p)
        return self.add_normed(x, update, self.post_feedforward_layernorm, p, "mlp", "residual")


class CappedLMHead(LMHead):
    def __init__(self, c: Any) -> None:
        super().__init__(c)
        self.cap = c.final_logit_softcapping

    def forward(self, states: Tensor) -> Tensor:
        return soft_cap(super().forward(states), self.cap)


class Gemma2Model(gemma.GemmaModel):
    family = "Gemma2"
    config_class = Config
    layer = Gemma2DecoderLayer
    heads = {**gemma.GemmaModel.heads, "causal": ("lm_head", CappedLMHead)}


Model = Gemma2Model
