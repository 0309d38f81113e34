"""GPT-NeoX and Pythia: attention and MLP read the same stream, side by side; RoPE turns a part of each head.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.blueprints.gpt_neox import Config
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.head_modules import Classifier, SpanHead
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
    RotaryPositions,
    RotaryTables,
)


class GPTNeoXAttention(RotaryAttention):
    printed_name = "Attention"
    projection_names = ("", "", "", "dense")

    def __init__(self, c: Config) -> None:
        heads, bias = c.num_attention_heads, c.attention_bias
        super().__init__(c.hidden_size, heads, heads, c.head_dim, bias=bias, output_bias=bias)
        self.query_key_value = Linear(c.hidden_size, 3 * c.hidden_size, bias)
        self.dropout = c.attention_dropout

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.split_heads(self.query_key_value(x))  # each head's query, key and value, one after another
        return heads[:, 0::3], heads[:, 1::3], heads[:, 2::3]


class GPTNeoXMLP(MLP):
    printed_name = "MLP"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense_h_to_4h = Linear(c.hidden_size, c.intermediate_size)
        self.dense_4h_to_h = Linear(c.intermediate_size, c.hidden_size)
        self.act = ActivationFunction(c.hidden_act)

    def neurons(self, x: Tensor) -> Tensor:
        return self.act(self.dense_h_to_4h(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.dense_4h_to_h(neurons)


class GPTNeoXLayer(Block):
    printed_name = "Layer"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.parallel = c.use_parallel_residual
        self.input_layernorm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.post_attention_layernorm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.post_attention_dropout = nn.Dropout(c.hidden_dropout)
        self.post_mlp_dropout = nn.Dropout(c.hidden_dropout)
        self.attention = GPTNeoXAttention(c)
        self.mlp = GPTNeoXMLP(c)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        update = self.post_attention_dropout(self.attention(self.input_layernorm(x), p))
        middle = self.add(x, update, p, "middle")
        h = self.post_attention_layernorm(x if self.parallel else middle)
        return self.add(middle, self.post_mlp_dropout(self.mlp(h, p)), p, "residual")


class GPTNeoXModel(Decoder):
    family = "GPTNeoX"
    config_class = Config
    prefix = "gpt_neox"
    heads = {**Decoder.heads, "token": ("", Classifier), "question": ("", SpanHead)}

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.embed_in = Embedding(c.vocab_size, c.hidden_size)
        self.emb_dropout = nn.Dropout(c.hidden_dropout)
        self.layers = nn.ModuleList(GPTNeoXLayer(c) for _ in range(c.num_hidden_layers))
        self.final_layer_norm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.rotary_emb = RotaryEmbedding(c.rope, c.head_dim)
        self.post_init(self.layers)

    @property
    def token_embedding(self) -> Embedding:
        return self.embed_in

    def rotary_tables(self, positions: RotaryPositions, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {"default": self.rotary_emb(positions, dtype)}

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", self.emb_dropout(x), p)
        for layer in self.layers:
            x = layer(x, p)
        return self.at_site("final", self.final_states(x), p)

    def final_states(self, x: Tensor) -> Tensor:
        return self.final_layer_norm(x)


Model = GPTNeoXModel
