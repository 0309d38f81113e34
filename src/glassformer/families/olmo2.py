"""OLMo 2: Llama's blocks with norms after attention and MLP instead of before, and one over all heads' queries and keys.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from glassformer.blueprints.olmo2 import Config
from glassformer.families import llama
from glassformer.families.shared.post_norms import PostNormAttention, PostNormBlock, PostNormMLP
from glassformer.layers import ForwardPass, GatedMLP, RMSNorm


class JointNormAttention(llama.LlamaAttention):
    """Attention with norms over all heads' queries together, and over all heads' keys."""

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.q_norm = RMSNorm(c.num_attention_heads * c.head_dim, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.num_key_value_heads * c.head_dim, c.rms_norm_eps)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (getattr(self, name)(x) for name in self.projection_names[:3])
        return self.split_heads(self.q_norm(query)), self.split_heads(self.k_norm(key)), self.split_heads(value)


class Olmo2Attention(PostNormAttention, JointNormAttention):
    pass


class Olmo2MLP(PostNormMLP, GatedMLP):
    pass


class Olmo2DecoderLayer(PostNormBlock):
    printed_name = "DecoderLayer"
    attention: ClassVar[type[Olmo2Attention]] = Olmo2Attention

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = self.attention(c, layer)
        self.mlp = Olmo2MLP(c.hidden_size, c.intermediate_size, c.hidden_act)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_feedforward_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add_normed(x, self.self_attn(x, p), self.post_attention_layernorm, p, "attention", "middle")
        return self.add_normed(x, self.mlp(x, p), self.post_feedforward_layernorm, p, "mlp", "residual")


class Olmo2Model(llama.LlamaModel):
    family = "Olmo2"
    config_class = Config
    layer = Olmo2DecoderLayer


Model = Olmo2Model
