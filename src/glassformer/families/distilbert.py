"""DistilBERT: BERT's blocks under other names, without token types and pooler.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.blueprints.distilbert import EPS, Config
from glassformer.families.shared.base import HeadModules
from glassformer.families.shared.encoder import Encoder
from glassformer.families.shared.head_modules import Classifier, SpanHead
from glassformer.layers import (
    MLP,
    ActivationFunction,
    Attention,
    Block,
    Embedding,
    FamilyModule,
    ForwardPass,
    LayerNorm,
    Linear,
)


class DistilBertEmbeddings(FamilyModule):
    printed_name = "Embeddings"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.word_embeddings = Embedding(c.vocab_size, c.hidden_size)
        self.position_embeddings = Embedding(c.max_position_embeddings, c.hidden_size)
        self.LayerNorm = LayerNorm(c.hidden_size, EPS)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        placed = x + self.position_embeddings(p.positions)
        return self.dropout(self.LayerNorm(placed))


class DistilBertSelfAttention(Attention):
    printed_name = "SelfAttention"
    projection_names = ("q_lin", "k_lin", "v_lin", "out_lin")

    def __init__(self, c: Config) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.hidden_size // heads, bias=True, output_bias=True)
        self.dropout = nn.Dropout(c.attention_dropout)


class FFN(MLP):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dropout = nn.Dropout(c.dropout)
        self.lin1 = Linear(c.hidden_size, c.intermediate_size)
        self.lin2 = Linear(c.intermediate_size, c.hidden_size)
        self.activation = ActivationFunction(c.hidden_act)

    def neurons(self, x: Tensor) -> Tensor:
        return self.activation(self.lin1(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.dropout(self.lin2(neurons))


class DistilBertBlock(Block):
    printed_name = "TransformerBlock"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attention = DistilBertSelfAttention(c)
        self.sa_layer_norm = LayerNorm(c.hidden_size, EPS)
        self.ffn = FFN(c)
        self.output_layer_norm = LayerNorm(c.hidden_size, EPS)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.attention(x, p), p, "middle", self.sa_layer_norm)
        return self.add(x, self.ffn(x, p), p, "residual", self.output_layer_norm)


class Transformer(FamilyModule):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(DistilBertBlock(c) for _ in range(c.num_hidden_layers))


class DistilBertMaskedHead(FamilyModule):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.activation = ActivationFunction(c.hidden_act)
        self.vocab_transform = Linear(c.hidden_size, c.hidden_size)
        self.vocab_layer_norm = LayerNorm(c.hidden_size, EPS)
        self.vocab_projector = Linear(c.hidden_size, c.vocab_size)

    @property
    def output(self) -> Linear:
        return self.vocab_projector

    def forward(self, states: Tensor) -> Tensor:
        return self.vocab_projector(self.vocab_layer_norm(self.activation(self.vocab_transform(states))))


class DistilBertClassifier(FamilyModule):
    reads = "first"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.pre_classifier = Linear(c.hidden_size, c.hidden_size)
        self.classifier = Linear(c.hidden_size, c.label_count)
        self.dropout = nn.Dropout(c.seq_classif_dropout)

    def forward(self, states: Tensor) -> Tensor:
        return self.classifier(self.dropout(F.relu(self.pre_classifier(states))))


class DistilBertSpanHead(SpanHead):
    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.dropout = nn.Dropout(c.qa_dropout)

    def forward(self, states: Tensor) -> Tensor:
        return super().forward(self.dropout(states))


class DistilBertModel(Encoder):
    family = "DistilBert"
    config_class = Config
    prefix = "distilbert"
    heads: ClassVar[HeadModules] = {
        "masked": ("", DistilBertMaskedHead),
        "sequence": ("", DistilBertClassifier),
        "token": ("", Classifier),
        "question": ("", DistilBertSpanHead),
    }

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.pooler = None
        self.embeddings = DistilBertEmbeddings(c)
        self.transformer = Transformer(c)
        self.post_init(self.transformer.layer)

    @property
    def blocks(self) -> Iterable[nn.Module]:
        return self.transformer.layer


Model = DistilBertModel
