"""StarCoder2: pre-norm blocks with layer norms and biases, RoPE, grouped-query attention, an MLP without a gate.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from glassformer.blueprints.starcoder2 import Config
from glassformer.families import llama
from glassformer.families.shared.head_modules import TokenScores
from glassformer.layers import MLP, ActivationFunction, Block, ForwardPass, LayerNorm, Linear


class Starcoder2Attention(llama.LlamaAttention):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.residual_dropout = c.residual_dropout

    def project_output(self, joined: Tensor) -> Tensor:
        return F.dropout(super().project_output(joined), self.residual_dropout, self.training)


class Starcoder2MLP(MLP):
    printed_name = "MLP"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c_fc = Linear(c.hidden_size, c.intermediate_size, c.attention_bias)
        self.c_proj = Linear(c.intermediate_size, c.hidden_size, c.attention_bias)
        self.act = ActivationFunction(c.hidden_act)
        self.residual_dropout = c.residual_dropout

    def neurons(self, x: Tensor) -> Tensor:
        return self.act(self.c_fc(x))

    def down(self, neurons: Tensor) -> Tensor:
        return F.dropout(self.c_proj(neurons), self.residual_dropout, self.training)


class Starcoder2DecoderLayer(Block):
    printed_name = "DecoderLayer"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Starcoder2Attention(c, layer)
        self.mlp = Starcoder2MLP(c)
        self.input_layernorm = LayerNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = LayerNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.self_attn(self.input_layernorm(x), p), p, "middle")
        return self.add(x, self.mlp(self.post_attention_layernorm(x), p), p, "residual")


class Starcoder2Model(llama.LlamaModel):
    family = "Starcoder2"
    config_class = Config
    layer = Starcoder2DecoderLayer
    norm_class = LayerNorm
    heads = {**llama.LlamaModel.heads, "token": ("", TokenScores)}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return super().compute(F.dropout(x, self.config.embedding_dropout, self.training), p)


Model = Starcoder2Model
