"""ALBERT: BERT's computation with one module for all blocks of a group, over narrower embeddings.

Shapes: x (batch, length, hidden); embeddings (batch, length, embedding_size).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from glassformer.blueprints.albert import Config
from glassformer.families import bert
from glassformer.families.shared.encoder import Encoder
from glassformer.families.shared.head_modules import Classifier, PooledClassifier, SpanHead
from glassformer.layers import MLP, ActivationFunction, Attention, Block, FamilyModule, ForwardPass, LayerNorm, Linear


class AlbertAttention(Attention):
    printed_name = "Attention"
    projection_names = ("query", "key", "value", "dense")

    def __init__(self, c: Config) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.hidden_size // heads, bias=True, output_bias=True)
        self.attention_dropout = nn.Dropout(c.attention_probs_dropout_prob)
        self.output_dropout = nn.Dropout(c.hidden_dropout_prob)
        self.LayerNorm = LayerNorm(c.hidden_size, c.layer_norm_eps)

    @property
    def dropout_rate(self) -> float:
        return self.attention_dropout.p if self.attention_dropout.training else 0.0

    def project_output(self, joined: Tensor) -> Tensor:
        return self.output_dropout(super().project_output(joined))


class AlbertLayer(Block, MLP):
    """Its MLP's two halves are modules of the block itself."""

    printed_name = "Layer"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.full_layer_layer_norm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.attention = AlbertAttention(c)
        self.ffn = Linear(c.hidden_size, c.intermediate_size)
        self.ffn_output = Linear(c.intermediate_size, c.hidden_size)
        self.activation = ActivationFunction(c.hidden_act)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)  # which nothing goes through, as its authors have it

    def neurons(self, x: Tensor) -> Tensor:
        return self.activation(self.ffn(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.ffn_output(neurons)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.attention(x, p), p, "middle", self.attention.LayerNorm)
        return self.add(x, MLP.forward(self, x, p), p, "residual", self.full_layer_layer_norm)


class AlbertLayerGroup(FamilyModule):
    printed_name = "LayerGroup"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList([AlbertLayer(c)])


class AlbertTransformer(FamilyModule):
    printed_name = "Transformer"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.embedding_hidden_mapping_in = Linear(c.embedding_size, c.hidden_size)
        self.albert_layer_groups = nn.ModuleList(AlbertLayerGroup(c) for _ in range(c.num_hidden_groups))


class AlbertPooler(Linear):
    """One vector for the whole text, read off its first token."""

    def _get_name(self) -> str:
        return "Linear"

    def forward(self, first: Tensor) -> Tensor:
        return torch.tanh(super().forward(first))


class AlbertMLMHead(FamilyModule):
    printed_name = "MLMHead"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.LayerNorm = LayerNorm(c.embedding_size, c.layer_norm_eps)
        self.dense = Linear(c.hidden_size, c.embedding_size)
        self.decoder = Linear(c.embedding_size, c.vocab_size)
        self.activation = ActivationFunction(c.hidden_act)
        self.bias = self.decoder.bias  # files have it under both names

    @property
    def output(self) -> Linear:
        return self.decoder

    def forward(self, states: Tensor) -> Tensor:
        return self.decoder(self.LayerNorm(self.activation(self.dense(states))))


class AlbertModel(Encoder):
    family = "Albert"
    config_class = Config
    prefix = "albert"
    heads = {
        "masked": ("predictions", AlbertMLMHead),
        "sequence": ("", PooledClassifier),
        "token": ("", Classifier),
        "question": ("", SpanHead),
    }

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.embeddings = bert.BertEmbeddings(c, c.embedding_size)
        self.encoder = AlbertTransformer(c)
        self.pooler = AlbertPooler(c.hidden_size, c.hidden_size)
        self.post_init(())  # a block's index comes with the pass

    @property
    def blocks(self) -> Iterable[nn.Module]:
        groups = self.encoder.albert_layer_groups
        return (groups[self.config.group(layer)].albert_layers[0] for layer in range(self.config.num_hidden_layers))

    def embedded(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.encoder.embedding_hidden_mapping_in(self.embeddings(x, p))

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("embedding", self.embedded(x, p), p)
        for number, block in enumerate(self.blocks):
            x = block(x, replace(p, block_index=number))
        return self.at_site("final", x, p)


Model = AlbertModel
