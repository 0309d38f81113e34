"""GPT-J: attention and MLP read the same norm, side by side; RoPE turns neighboring numbers of a part of each head.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.blueprints.gptj import Config
from glassformer.families.gpt2 import GPT2Model, GPTAttention
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.head_modules import LMHead, SpanHead
from glassformer.layers import (
    MLP,
    ActivationFunction,
    Block,
    ForwardPass,
    LayerNorm,
    Linear,
    RotaryAttention,
    RotaryEmbedding,
    RotaryPositions,
    RotaryTables,
)


class GPTJAttention(GPTAttention, RotaryAttention):
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, c: Config) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.head_dim, bias=False, output_bias=False)
        self.add_dropouts(c)


class GPTJMLP(MLP):
    printed_name = "MLP"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.fc_in = Linear(c.hidden_size, c.inner)
        self.fc_out = Linear(c.inner, c.hidden_size)
        self.act = ActivationFunction(c.hidden_act)
        self.dropout = nn.Dropout(c.resid_pdrop)

    def neurons(self, x: Tensor) -> Tensor:
        return self.act(self.fc_in(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.dropout(self.fc_out(neurons))


class GPTJBlock(Block):
    printed_name = "Block"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(c.hidden_size, c.layer_norm_epsilon)
        self.attn = GPTJAttention(c)
        self.mlp = GPTJMLP(c)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        h = self.ln_1(x)
        x = self.add(x, self.attn(h, p), p, "middle")
        return self.add(x, self.mlp(h, p), p, "residual")


class GPTJLMHead(LMHead):
    has_bias = True


class GPTJModel(GPT2Model):
    family = "GPTJ"
    config_class = Config
    class_suffixes = {}
    heads = {**Decoder.heads, "causal": ("lm_head", GPTJLMHead), "question": ("", SpanHead)}
    block = GPTJBlock

    def add_positions(self, c: Config) -> None:
        self.rotary_emb = RotaryEmbedding(c.rotation, c.head_dim)

    def placed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def check_positions(self, positions: Tensor) -> None:
        """RoPE has room for all of them."""

    def rotary_tables(self, positions: RotaryPositions, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {"default": self.rotary_emb(positions, dtype)}


Model = GPTJModel
