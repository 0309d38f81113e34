"""BERT: every token sees every other; a norm after each sum; token types in addition to positions; a pooler on top.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn

from glassformer.blueprints.bert import Config
from glassformer.families.shared.base import HeadModules
from glassformer.families.shared.encoder import Encoder, Pooler
from glassformer.families.shared.head_modules import Classifier, PooledClassifier, PredictionHeadTransform, SpanHead
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


class BertEmbeddings(FamilyModule):
    printed_name = "Embeddings"

    def __init__(self, c: Config, size: int) -> None:
        super().__init__()
        self.first = c.first_position
        self.word_embeddings = Embedding(c.vocab_size, size)
        self.position_embeddings = Embedding(c.max_position_embeddings, size)
        self.token_type_embeddings = Embedding(c.type_vocab_size, size)
        self.LayerNorm = LayerNorm(size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        placed = x + self.token_type_embeddings(p.segments) + self.position_embeddings(p.positions + self.first)
        return self.dropout(self.LayerNorm(placed))


class BertSelfAttention(Attention):
    printed_name = "SelfAttention"
    projection_names = ("query", "key", "value", "")

    def __init__(self, c: Config) -> None:
        heads = c.num_attention_heads
        super().__init__(c.hidden_size, heads, heads, c.hidden_size // heads, bias=True, output_bias=True)
        self.dropout = nn.Dropout(c.attention_probs_dropout_prob)


class BertOutput(FamilyModule):
    """A projection back to the stream, and the norm that comes after the sum."""

    printed_name = "Output"

    def __init__(self, inner: int, c: Config) -> None:
        super().__init__()
        self.dense = Linear(inner, c.hidden_size)
        self.LayerNorm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.dropout = nn.Dropout(c.hidden_dropout_prob)

    def update(self, x: Tensor) -> Tensor:
        return self.dropout(self.dense(x))


class BertSelfOutput(BertOutput):
    printed_name = "SelfOutput"


class BertAttention(FamilyModule):
    printed_name = "Attention"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.self = self.make_self_attention(c)
        self.output = BertSelfOutput(c.hidden_size, c)

    def make_self_attention(self, c: Any) -> Attention:
        return BertSelfAttention(c)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.at_site("attention.update", self.output.update(self.self.joined_heads(x, p)), p)


class BertIntermediate(FamilyModule):
    printed_name = "Intermediate"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense = Linear(c.hidden_size, c.intermediate_size)
        self.intermediate_act_fn = ActivationFunction(c.hidden_act)


class BertLayer(Block, MLP):
    """Its MLP's two halves are modules of the block itself."""

    printed_name = "Layer"
    attention_class: ClassVar[type[BertAttention]] = BertAttention

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attention = self.attention_class(c)
        self.intermediate = BertIntermediate(c)
        self.output = BertOutput(c.intermediate_size, c)

    def neurons(self, x: Tensor) -> Tensor:
        return self.intermediate.intermediate_act_fn(self.intermediate.dense(x))

    def down(self, neurons: Tensor) -> Tensor:
        return self.output.update(neurons)

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.add(x, self.attention(x, p), p, "middle", self.attention.output.LayerNorm)
        return self.add(x, MLP.forward(self, x, p), p, "residual", self.output.LayerNorm)


class BertEncoder(FamilyModule):
    printed_name = "Encoder"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(c) for _ in range(c.num_hidden_layers))


class BertLMPredictionHead(FamilyModule):
    printed_name = "LMPredictionHead"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.transform = PredictionHeadTransform(c.hidden_size, c.hidden_act, c.layer_norm_eps)
        self.decoder = Linear(c.hidden_size, c.vocab_size)
        self.bias = self.decoder.bias  # files have it under both names

    def forward(self, states: Tensor) -> Tensor:
        return self.decoder(self.transform(states))


class BertOnlyMLMHead(FamilyModule):
    printed_name = "OnlyMLMHead"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.predictions = BertLMPredictionHead(c)

    @property
    def output(self) -> Linear:
        return self.predictions.decoder

    def forward(self, states: Tensor) -> Tensor:
        return self.predictions(states)


class BertModel(Encoder):
    family = "Bert"
    config_class = Config
    prefix = "bert"
    heads: ClassVar[HeadModules] = {
        "masked": ("cls", BertOnlyMLMHead),
        "sequence": ("", PooledClassifier),
        "token": ("", Classifier),
        "question": ("", SpanHead),
    }

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.embeddings = BertEmbeddings(c, c.hidden_size)
        self.encoder = BertEncoder(c)
        self.pooler = Pooler(c.hidden_size)
        self.post_init(self.encoder.layer)

    @property
    def blocks(self) -> Iterable[nn.Module]:
        return self.encoder.layer


Model = BertModel
