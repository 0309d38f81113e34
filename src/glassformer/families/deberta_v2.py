"""DeBERTa v2 and v3: BERT's blocks whose attention weighs content and distance apart.

Shapes: x (batch, length, hidden); the distances' vectors (buckets, hidden).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from glassformer.blueprints.deberta_v2 import Config
from glassformer.families import bert
from glassformer.families.shared.encoder import Encoder
from glassformer.families.shared.head_modules import SpanHead
from glassformer.layers import (
    ActivationFunction,
    DisentangledAttention,
    DistanceVectors,
    Embedding,
    FamilyModule,
    ForwardPass,
    LayerNorm,
    Linear,
)


class DebertaV2Embeddings(FamilyModule):
    printed_name = "Embeddings"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.word_embeddings = Embedding(c.vocab_size, c.hidden_size)
        positions = Embedding(c.max_position_embeddings, c.hidden_size) if c.position_biased_input else None
        self.position_embeddings = positions
        self.token_type_embeddings = Embedding(c.type_vocab_size, c.hidden_size) if c.type_vocab_size else None
        self.LayerNorm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(p.positions)
        if self.token_type_embeddings is not None:
            x = x + self.token_type_embeddings(p.segments)
        return self.dropout(self.LayerNorm(x))


class DisentangledSelfAttention(DisentangledAttention):
    projection_names = ("query_proj", "key_proj", "value_proj", "")

    def __init__(self, c: Config) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.hidden_size // heads, bias=True, output_bias=True)
        self.scale = c.scale
        self.dropout = nn.Dropout(c.attention_probs_dropout_prob)
        self.pos_dropout = nn.Dropout(c.hidden_dropout_prob)
        self.terms = c.distance_terms
        self.prefix = "" if c.share_att_key else "pos_"
        for name in () if c.share_att_key else self.terms:
            self.add_module(f"pos_{name}_proj", Linear(c.hidden_size, c.hidden_size))

    def distance_heads(self, vectors: Tensor) -> tuple[Tensor | None, Tensor | None]:
        vectors = self.pos_dropout(vectors)
        key, query = (
            self.split_heads(getattr(self, f"{self.prefix}{name}_proj")(vectors)) if name in self.terms else None
            for name in ("key", "query")
        )
        return key, query


class DebertaV2Attention(bert.BertAttention):
    def make_self_attention(self, c: Config) -> DisentangledSelfAttention:
        return DisentangledSelfAttention(c)


class DebertaV2Layer(bert.BertLayer):
    attention_class = DebertaV2Attention


class DebertaV2Encoder(FamilyModule):
    printed_name = "Encoder"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(DebertaV2Layer(c) for _ in range(c.num_hidden_layers))
        self.rel_embeddings = Embedding(2 * c.distances.span, c.hidden_size) if c.relative_attention else None
        normed = c.relative_attention and c.norm_rel_ebd == "layer_norm"
        self.LayerNorm = LayerNorm(c.hidden_size, c.layer_norm_eps) if normed else None
        self.distances = c.distances

    def distance_vectors(self, p: ForwardPass) -> DistanceVectors | None:
        """What stands for the distances of a pass."""
        if self.rel_embeddings is None:
            return None
        vectors = self.rel_embeddings.weight
        furthest, device = self.distances.max_distance, vectors.device
        places = (-p.mask.distances()).clamp(-furthest, furthest) + furthest
        numbers = torch.from_numpy(self.distances.numbers()).to(device, torch.long)[places]
        return DistanceVectors(vectors if self.LayerNorm is None else self.LayerNorm(vectors), numbers)


class ContextPooler(FamilyModule):
    """One vector for the whole text, read off its first token."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.dropout = nn.Dropout(c.pooler_dropout)
        self.activation = ActivationFunction(c.pooler_hidden_act)

    def forward(self, first: Tensor) -> Tensor:
        return self.activation(self.dense(self.dropout(first)))


class PooledClassifier(FamilyModule):
    reads = "first"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.pooler = ContextPooler(c)
        self.classifier = Linear(c.hidden_size, c.label_count)
        self.dropout = nn.Dropout(c.head_dropout)

    def forward(self, first: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.pooler(first)))


class TokenClassifier(FamilyModule):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dropout = nn.Dropout(c.hidden_dropout_prob)
        self.classifier = Linear(c.hidden_size, c.label_count)

    def forward(self, states: Tensor) -> Tensor:
        return self.classifier(self.dropout(states))


class DebertaV2Model(Encoder):
    family = "DebertaV2"
    config_class = Config
    prefix = "deberta"
    heads = {
        "masked": ("cls", bert.BertOnlyMLMHead),
        "sequence": ("", PooledClassifier),
        "token": ("", TokenClassifier),
        "question": ("", SpanHead),
    }

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.pooler = None
        self.embeddings = DebertaV2Embeddings(c)
        self.encoder = DebertaV2Encoder(c)
        self.post_init(self.encoder.layer)

    @property
    def blocks(self) -> Iterable[nn.Module]:
        return self.encoder.layer

    def check_positions(self, positions: Tensor) -> None:
        if self.config.position_biased_input:
            super().check_positions(positions)

    def compute(self, x: Tensor, p: ForwardPass) -> Tensor:
        return super().compute(x, replace(p, distances=self.encoder.distance_vectors(p)))


Model = DebertaV2Model
