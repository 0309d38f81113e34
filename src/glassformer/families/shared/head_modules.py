"""Heads as families have them: small modules, named as checkpoints name them, that turn states into scores.

`reads` says what a head takes: "states" (every token's), the "first" or "last" token's, that of the last "eos" token, the
"mean" of all, or the "pooler" output. A head that may share the token embedding's weight has it in `output`.

Shapes: states (batch, length, hidden) or (batch, hidden), as read; scores the same with labels or vocabulary at the end.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from glassformer.layers import ActivationFunction, FamilyModule, LayerNorm, Linear


class LMHead(Linear):
    """Scores for the vocabulary."""

    has_bias: ClassVar[bool] = False

    def __init__(self, c: Any) -> None:
        super().__init__(c.hidden_size, c.vocab_size, bias=self.has_bias)

    def _get_name(self) -> str:
        return "Linear"

    @property
    def output(self) -> Linear:
        return self


class LastTokenClassifier(Linear):
    """Label scores for a text, read off its last token."""

    reads = "last"

    def __init__(self, c: Any) -> None:
        super().__init__(c.hidden_size, c.label_count, bias=False)

    def _get_name(self) -> str:
        return "Linear"


class Classifier(FamilyModule):
    """Dropout and a linear layer: label scores for each token, or for the pooled text."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.dropout = nn.Dropout(c.head_dropout)
        self.classifier = Linear(c.hidden_size, c.label_count)

    def forward(self, states: Tensor) -> Tensor:
        return self.classifier(self.dropout(states))


class TokenScores(FamilyModule):
    """The same for each token, under the name that most decoders have for it."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        rate = getattr(c, "classifier_dropout", None)
        rate = getattr(c, "hidden_dropout", None) if rate is None else rate
        self.dropout = nn.Dropout(0.1 if rate is None else rate)
        self.score = Linear(c.hidden_size, c.label_count)

    def forward(self, states: Tensor) -> Tensor:
        return self.score(self.dropout(states))


class PooledClassifier(Classifier):
    reads = "pooler"


class SpanHead(FamilyModule):
    """For each token, how well an answer would begin and end there."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.qa_outputs = Linear(c.hidden_size, 2)

    def forward(self, states: Tensor) -> Tensor:
        return self.qa_outputs(states)


class ClassificationHead(FamilyModule):
    """A hidden layer with an activation, then the labels."""

    reads = "first"

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.dense = Linear(c.hidden_size, c.hidden_size)
        self.dropout = nn.Dropout(c.head_dropout)
        self.out_proj = Linear(c.hidden_size, c.label_count)

    def activate(self, hidden: Tensor) -> Tensor:
        return torch.tanh(hidden)

    def forward(self, states: Tensor) -> Tensor:
        return self.out_proj(self.dropout(self.activate(self.dense(self.dropout(states)))))


class PredictionHeadTransform(FamilyModule):
    """What encoders do to a state before they guess its token: a layer, an activation, a norm."""

    def __init__(self, hidden: int, activation: str, eps: float) -> None:
        super().__init__()
        self.dense = Linear(hidden, hidden)
        self.transform_act_fn = ActivationFunction(activation)
        self.LayerNorm = LayerNorm(hidden, eps)

    def forward(self, states: Tensor) -> Tensor:
        return self.LayerNorm(self.transform_act_fn(self.dense(states)))
