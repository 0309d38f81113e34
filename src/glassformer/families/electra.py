"""ELECTRA: BERT's blocks over narrower embeddings; heads for its generator and its discriminator.

Shapes: x (batch, length, hidden); embeddings (batch, length, embedding_size).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from glassformer.blueprints.electra import Config
from glassformer.families import bert
from glassformer.families.shared.encoder import Encoder
from glassformer.families.shared.head_modules import ClassificationHead, Classifier, SpanHead
from glassformer.layers import ActivationFunction, FamilyModule, ForwardPass, LayerNorm, Linear


class GeneratorPredictions(FamilyModule):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.LayerNorm = LayerNorm(c.embedding_size, c.layer_norm_eps)
        self.dense = Linear(c.hidden_size, c.embedding_size)

    def forward(self, states: Tensor) -> Tensor:
        return self.LayerNorm(F.gelu(self.dense(states)))


class Generator(FamilyModule):
    """Guesses hidden tokens; its two parts are at the top level of checkpoints."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.generator_predictions = GeneratorPredictions(c)
        self.generator_lm_head = Linear(c.embedding_size, c.vocab_size)

    @property
    def output(self) -> Linear:
        return self.generator_lm_head

    def forward(self, states: Tensor) -> Tensor:
        return self.generator_lm_head(self.generator_predictions(states))


class DiscriminatorPredictions(FamilyModule):
    """For each token, whether another one stood there."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.activation = ActivationFunction(c.hidden_act)
        self.dense_prediction = Linear(c.hidden_size, 1)

    def forward(self, states: Tensor) -> Tensor:
        return self.dense_prediction(self.activation(self.dense(states)))


class ElectraClassificationHead(ClassificationHead):
    printed_name = "ClassificationHead"

    def activate(self, hidden: Tensor) -> Tensor:
        return F.gelu(hidden)


class ElectraModel(Encoder):
    family = "Electra"
    config_class = Config
    prefix = "electra"
    heads = {
        "masked": ("", Generator),
        "discriminator": ("discriminator_predictions", DiscriminatorPredictions),
        "sequence": ("classifier", ElectraClassificationHead),
        "token": ("", Classifier),
        "question": ("", SpanHead),
    }

    def __init__(self, c: Config) -> None:
        super().__init__(c)
        self.pooler = None
        self.embeddings = bert.BertEmbeddings(c, c.embedding_size)
        self.embeddings_project = Linear(c.embedding_size, c.hidden_size) if c.embedding_size != c.hidden_size else None
        self.encoder = bert.BertEncoder(c)
        self.post_init(self.encoder.layer)

    @property
    def blocks(self) -> Iterable[nn.Module]:
        return self.encoder.layer

    def embedded(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.embeddings(x, p)
        return x if self.embeddings_project is None else self.embeddings_project(x)


Model = ElectraModel
