"""Llama and models like it: pre-norm blocks, RoPE, grouped-query attention, gated MLP.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from glassformer.blueprints.llama import Config
from glassformer.families.shared.decoder import Decoder
from glassformer.layers import (
    MLP,
    Block,
    Embedding,
    ForwardPass,
    GatedMLP,
    RMSNorm,
    RotaryAttention,
    RotaryEmbedding,
    RotaryPositions,
    RotaryTables,
)


class LlamaAttention(RotaryAttention):
    printed_name = "Attention"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(
            c.hidden_size,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            bias=c.attention_bias,
            output_bias=c.output_bias,
        )
        self.window = c.window(layer)
        self.dropout = c.attention_dropout


class LlamaDecoderLayer(Block):
    printed_name = "DecoderLayer"
    attention: ClassVar[type[LlamaAttention]] = LlamaAttention
    mlp_class: ClassVar[type[MLP]] = GatedMLP
    mlp_name: ClassVar[str] = "mlp"  # in checkpoints
    norm_class: ClassVar[type[RMSNorm]] = RMSNorm

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = self.attention(c, layer)
        self.add_module(self.mlp_name, self.make_mlp(c, layer))
        self.input_layernorm = self.norm_class(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = self.norm_class(c.hidden_size, c.rms_norm_eps)

    def make_mlp(self, c: Config, layer: int) -> nn.Module:
        return self.mlp_class(c.hidden_size, c.intermediate_size, c.hidden_act, c.mlp_bias)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        mlp = getattr(self, self.mlp_name)
        x = self.add(x, self.self_attn(self.input_layernorm(x), p), p, "middle")
        return self.add(x, mlp(self.post_attention_layernorm(x), p), p, "residual")


class LlamaModel(Decoder):
    family = "Llama"
    config_class = Config
    layer: ClassVar[type[Block]] = LlamaDecoderLayer
    norm_class: ClassVar[type[nn.Module]] = RMSNorm

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.embed_tokens = Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(self.layer(c, number) for number in range(c.num_hidden_layers))
        self.norm = self.norm_class(c.hidden_size, c.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(c.rope, c.head_dim)
        self.post_init(self.layers)

    @property
    def token_embedding(self) -> Embedding:
        return self.embed_tokens

    def rotary_tables(self, positions: RotaryPositions, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {"default": self.rotary_emb(positions, dtype)}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", x, p)
        for layer in self.layers:
            x = layer(x, p)
        return self.at_site("final", self.final_states(x), p)

    def final_states(self, x: Tensor) -> Tensor:
        return self.norm(x)


Model = LlamaModel
