"""The from-scratch GPT of the course: pre-norm, ReLU, sinusoidal positions, each head with projections of its own.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from glassformer.blueprints.scratch import EPS, Config
from glassformer.families.shared.decoder import Decoder
from glassformer.layers import (
    MLP,
    Attention,
    Block,
    Embedding,
    FamilyModule,
    ForwardPass,
    LayerNorm,
    Linear,
    label_modules,
    sinusoidal_positions,
)


class HeadProjections(FamilyModule):
    """One head's projections, and the mask that its checkpoints carry and nothing here reads."""

    printed_name = "Attention"
    mask: Tensor

    def __init__(self, c: Config, mask: Tensor) -> None:
        super().__init__()
        size = c.hidden_size // c.num_attention_heads
        self.Wq = Linear(c.hidden_size, size, bias=False)
        self.Wk = Linear(c.hidden_size, size, bias=False)
        self.Wv = Linear(c.hidden_size, size, bias=False)
        self.register_buffer("mask", mask)
        self.dropout = nn.Dropout(c.dropout)


class MultiHeadAttention(Attention):
    projection_names = ("Wq", "Wk", "Wv", "projection_layer")

    def __init__(self, c: Config, mask: Tensor) -> None:
        nn.Module.__init__(self)
        self.head_size = c.hidden_size // c.num_attention_heads
        self.scale = self.head_size**-0.5
        self.heads = nn.ModuleList(HeadProjections(c, mask) for _ in range(c.num_attention_heads))
        self.projection_layer = Linear(c.hidden_size, c.hidden_size)
        self.dropout: Any = nn.Dropout(c.dropout)

    @property
    def dropout_rate(self) -> float:
        head: Any = self.heads[0]
        return head.dropout.p if head.dropout.training else 0.0

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            torch.stack([getattr(head, name)(x) for head in self.heads], dim=1) for name in self.projection_names[:3]
        )
        return query, key, value

    def project_output(self, joined: Tensor) -> Tensor:
        return self.dropout(self.projection_layer(joined))


class FeedForwardNetwork(MLP):
    def __init__(self, c: Config) -> None:
        super().__init__()
        inner = 4 * c.hidden_size
        self.ffn = nn.Sequential(
            Linear(c.hidden_size, inner), nn.ReLU(), Linear(inner, c.hidden_size), nn.Dropout(c.dropout)
        )

    def neurons(self, x: Tensor) -> Tensor:
        return self.ffn[:2](x)

    def down(self, neurons: Tensor) -> Tensor:
        return self.ffn[2:](neurons)


class TransformerBlock(Block):
    def __init__(self, c: Config, mask: Tensor) -> None:
        super().__init__()
        self.ln1 = LayerNorm(c.hidden_size, EPS)
        self.ln2 = LayerNorm(c.hidden_size, EPS)
        self.mha = MultiHeadAttention(c, mask)
        self.ffn = FeedForwardNetwork(c)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.mha(self.ln1(x), p), p, "middle")
        return self.add(x, self.ffn(self.ln2(x), p), p, "residual")


class OutputLayer(Linear):
    def __init__(self, c: Config) -> None:
        super().__init__(c.hidden_size, c.scores)

    def _get_name(self) -> str:
        return "Linear"

    @property
    def output(self) -> Linear:
        return self


class ScratchModel(Decoder):
    family = "Scratch"
    config_class = Config
    prefix = ""
    heads = {"causal": ("model_out_linear_layer", OutputLayer)}

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.token_embedding_lookup_table = Embedding(c.vocab_size, c.hidden_size)
        mask = torch.ones(c.max_position_embeddings, c.max_position_embeddings, device="cpu").tril()
        blocks = [TransformerBlock(c, mask) for _ in range(c.num_hidden_layers)]
        self.transformer_blocks = nn.ModuleList([*blocks, LayerNorm(c.hidden_size, EPS)])
        label_modules(self, "", blocks)  # the course's own class names

    @property
    def token_embedding(self) -> Embedding:
        return self.token_embedding_lookup_table

    def check_positions(self, positions: Tensor) -> None:
        self.check_position_table(positions)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", x + sinusoidal_positions(p.positions, x.shape[-1], x.dtype), p)
        *blocks, _ = self.transformer_blocks
        for block in blocks:
            x = block(x, p)
        return self.at_site("final", self.final_states(x), p)

    def final_states(self, x: Tensor) -> Tensor:
        norm = self.transformer_blocks[-1]
        return norm(x)


Model = ScratchModel
