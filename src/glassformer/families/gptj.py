"""GPT-J: attention and MLP read the same norm, side by side; RoPE turns neighboring numbers of a part of each head.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.blueprints.gptj import Config
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.head_modules import LMHead, SpanHead
from glassformer.layers import (
    MLP,
    ActivationFunction,
    Block,
    Embedding,
    ForwardPass,
    LayerNorm,
    Linear,
    RotaryAttention,
    RotaryEmbedding,
    RotaryTables,
)


class GPTJAttention(RotaryAttention):
    printed_name = "Attention"
    projection_names = ("q_proj", "k_proj", "v_proj", "out_proj")

    def __init__(self, c: Config) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.head_dim, bias=False, output_bias=False)
        self.attn_dropout = nn.Dropout(c.attn_pdrop)
        self.resid_dropout = nn.Dropout(c.resid_pdrop)

    @property
    def dropout_rate(self) -> float:
        return self.attn_dropout.p if self.attn_dropout.training else 0.0

    def project_output(self, joined: Tensor) -> Tensor:
        return self.resid_dropout(super().project_output(joined))


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

    def __init__(self, c: Config) -> None:
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


class GPTJModel(Decoder):
    family = "GPTJ"
    config_class = Config
    prefix = "transformer"
    heads = {**Decoder.heads, "causal": ("lm_head", GPTJLMHead), "question": ("", SpanHead)}

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.wte = Embedding(c.vocab_size, c.hidden_size)
        self.drop = nn.Dropout(c.embd_pdrop)
        self.h = nn.ModuleList(GPTJBlock(c) for _ in range(c.num_hidden_layers))
        self.ln_f = LayerNorm(c.hidden_size, c.layer_norm_epsilon)
        self.rotary_emb = RotaryEmbedding(c.rotation, c.head_dim)
        self.post_init(self.h)

    @property
    def token_embedding(self) -> Embedding:
        return self.wte

    def rotary_tables(self, positions: Tensor, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {"default": self.rotary_emb(positions, dtype)}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", self.drop(x), p)
        for block in self.h:
            x = block(x, p)
        return self.at_site("final", self.final_norm(x), p)

    def final_norm(self, x: Tensor) -> Tensor:
        return self.ln_f(x)


Model = GPTJModel
