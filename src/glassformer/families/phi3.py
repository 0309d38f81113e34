"""Phi-3 and Phi-4: Llama's blocks with one projection for query, key and value, and one for gate and up.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.blueprints.phi3 import Config
from glassformer.families import llama
from glassformer.families.shared.head_modules import TokenScores
from glassformer.layers import ForwardPass, FusedGatedMLP, Linear


class Phi3Attention(llama.LlamaAttention):
    projection_names = ("", "", "", "o_proj")

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.group_size = c.num_attention_heads // c.num_key_value_heads
        heads = c.num_attention_heads + 2 * c.num_key_value_heads
        self.qkv_proj = Linear(c.hidden_size, heads * c.head_dim, bias=False)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.split_heads(self.qkv_proj(x))
        groups = heads.shape[1] // (self.group_size + 2)  # of which a rank may have a part
        return heads[:, : -2 * groups], heads[:, -2 * groups : -groups], heads[:, -groups:]


class Phi3DecoderLayer(llama.LlamaDecoderLayer):
    attention = Phi3Attention
    mlp_class = FusedGatedMLP

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.resid_attn_dropout = nn.Dropout(c.resid_pdrop)
        self.resid_mlp_dropout = nn.Dropout(c.resid_pdrop)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        update = self.self_attn(self.input_layernorm(x), p)
        x = self.add(x, self.resid_attn_dropout(update), p, "middle")
        update = getattr(self, self.mlp_name)(self.post_attention_layernorm(x), p)
        return self.add(x, self.resid_mlp_dropout(update), p, "residual")


class Phi3Model(llama.LlamaModel):
    family = "Phi3"
    config_class = Config
    layer = Phi3DecoderLayer
    heads = {**llama.LlamaModel.heads, "token": ("", TokenScores)}


Model = Phi3Model
