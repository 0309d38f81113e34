"""ModernBERT: an encoder of pre-norm blocks with RoPE and gated MLPs; most layers see only what is near.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from glassformer.blueprints.modernbert import POOLING, Config
from glassformer.families.shared.encoder import Encoder
from glassformer.layers import (
    MLP,
    ActivationFunction,
    Block,
    Embedding,
    FamilyModule,
    ForwardPass,
    LayerNorm,
    Linear,
    RotaryAttention,
    RotaryEmbedding,
    RotaryPositions,
    RotaryTables,
)


def layer_norm(c: Config) -> LayerNorm:
    return LayerNorm(c.hidden_size, c.layer_norm_eps, bias=c.norm_bias)


class ModernBertEmbeddings(FamilyModule):
    printed_name = "Embeddings"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.tok_embeddings = Embedding(c.vocab_size, c.hidden_size)
        self.norm = layer_norm(c)
        self.drop = nn.Dropout(c.embedding_dropout)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.drop(self.norm(x))


class ModernBertAttention(RotaryAttention):
    printed_name = "Attention"
    projection_names = ("", "", "", "Wo")

    def __init__(self, c: Config, layer: int) -> None:
        heads, bias = c.num_attention_heads, c.attention_bias
        super().__init__(c.hidden_size, heads, heads, c.head_dim, bias=bias, output_bias=bias)
        self.Wqkv = Linear(c.hidden_size, 3 * c.hidden_size, bias)
        self.out_drop = nn.Dropout(c.attention_dropout) if c.attention_dropout > 0 else nn.Identity()
        self.dropout = c.attention_dropout
        self.window = c.window(layer)
        self.rotary_name = c.rope_name(layer)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.split_heads(part) for part in self.Wqkv(x).chunk(3, -1))
        return query, key, value

    def project_output(self, joined: Tensor) -> Tensor:
        return self.out_drop(super().project_output(joined))


class ModernBertMLP(MLP):
    printed_name = "MLP"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.Wi = Linear(c.hidden_size, 2 * c.intermediate_size, c.mlp_bias)
        self.act = ActivationFunction(c.hidden_act)
        self.drop = nn.Dropout(c.mlp_dropout)
        self.Wo = Linear(c.intermediate_size, c.hidden_size, c.mlp_bias)

    def neurons(self, x: Tensor) -> Tensor:
        gate, up = self.Wi(x).chunk(2, -1)
        return self.act(gate) * up

    def down(self, neurons: Tensor) -> Tensor:
        return self.Wo(self.drop(neurons))


class ModernBertEncoderLayer(Block):
    printed_name = "EncoderLayer"

    def __init__(self, c: Config, layer: int) -> None:
        super().__init__()
        self.attn_norm = layer_norm(c) if layer else nn.Identity()
        self.attn = ModernBertAttention(c, layer)
        self.mlp_norm = layer_norm(c)
        self.mlp = ModernBertMLP(c)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.attn(self.attn_norm(x), p), p, "middle")
        return self.add(x, self.mlp(self.mlp_norm(x), p), p, "residual")


class ModernBertPredictionHead(FamilyModule):
    printed_name = "PredictionHead"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size, c.classifier_bias)
        self.act = ActivationFunction(c.classifier_activation)
        self.norm = layer_norm(c)

    def forward(self, states: Tensor) -> Tensor:
        return self.norm(self.act(self.dense(states)))


class TokenGuesser(FamilyModule):
    """Guesses hidden tokens; its two parts are at the top level of checkpoints."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.head = ModernBertPredictionHead(c)
        self.decoder = Linear(c.hidden_size, c.vocab_size, c.decoder_bias)

    @property
    def output(self) -> Linear:
        return self.decoder

    def forward(self, states: Tensor) -> Tensor:
        return self.decoder(self.head(states))


class Classifier(FamilyModule):
    """Label scores for each token, or for a text's first token, or for the mean of all."""

    outputs: int | None = None

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.reads = POOLING[c.classifier_pooling]
        self.head = ModernBertPredictionHead(c)
        self.drop = nn.Dropout(c.head_dropout)
        self.classifier = Linear(c.hidden_size, self.outputs or c.label_count)

    def forward(self, states: Tensor) -> Tensor:
        return self.classifier(self.drop(self.head(states)))


class SpanClassifier(Classifier):
    outputs = 2


class ModernBertModel(Encoder):
    family = "ModernBert"
    config_class = Config
    prefix = "model"
    heads = {
        "masked": ("", TokenGuesser),
        "sequence": ("", Classifier),
        "token": ("", Classifier),
        "question": ("", SpanClassifier),
    }

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.pooler = None
        self.embeddings = ModernBertEmbeddings(c)
        self.layers = nn.ModuleList(ModernBertEncoderLayer(c, number) for number in range(c.num_hidden_layers))
        self.final_norm = layer_norm(c)
        self.rotary_emb = RotaryEmbedding(c.rope, c.head_dim)
        self.rotary_emb_local = RotaryEmbedding(c.local_rope, c.head_dim)
        self.post_init(self.layers)

    @property
    def token_embedding(self) -> Embedding:
        return self.embeddings.tok_embeddings

    @property
    def blocks(self) -> Iterable[nn.Module]:
        return self.layers

    def final_states(self, x: Tensor) -> Tensor:
        return self.final_norm(x)

    def check_positions(self, positions: Tensor) -> None:
        """Rotary positions have no table that would end."""

    def rotary_tables(self, positions: RotaryPositions, dtype: torch.dtype) -> dict[str, RotaryTables]:
        return {"default": self.rotary_emb(positions, dtype), "local": self.rotary_emb_local(positions, dtype)}


Model = ModernBertModel
