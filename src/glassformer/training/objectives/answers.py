"""Answer as the assistant of given conversations does, or as somebody prefers; everything but the answers is only read.

Preferences are learned by direct preference optimization (https://arxiv.org/abs/2305.18290). What is trained is how much
more likely the chosen answer has become than the rejected one, since the training began:

    reward(answer) = beta · (log p(answer) − log p(answer) of the model at the start)
    loss           = −log sigmoid(reward(chosen) − reward(rejected))

The log-probabilities of the start are computed once, before the first step.

Shapes: states (windows, width, hidden); of conversations, targets (windows, width); of preferences, log-probabilities
(pairs, 2), first those of the chosen answers, and targets (pairs,), the pairs' indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.torch.arguments import WatchLike
from glassformer.torch.base import IGNORED
from glassformer.training.measures import perplexity
from glassformer.training.objectives.objective import Data, ExampleBatch, Measures, Objective
from glassformer.training.packing import TrainingRow, pack_rows, run_packed

Pair = tuple[TrainingRow, TrainingRow]  # chosen, rejected


class PackedAnswers(Objective[Data]):
    """Rows that may share windows."""

    head = "causal"

    def __init__(self, data: Data, held_out: Data, source: str, pack: bool = True) -> None:
        """`source`: a fingerprint of the rows. `pack`: short rows share a window."""
        super().__init__(data, held_out, source)
        self.pack = pack

    def run_base(self, model: Any, batch: ExampleBatch, watch: WatchLike = None) -> Any:
        return run_packed(model.base_model, batch.inputs, watch)


class ChatAnswers(PackedAnswers[Sequence[TrainingRow]]):
    sparse = True  # most tokens are only read

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        data = self.data_of(held_out)
        packed = pack_rows([data[row] for row in rows], self.pack)
        return ExampleBatch(packed.inputs, packed.targets, list(rows))

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        return {"perplexity": perplexity(loss)}


class Preferences(PackedAnswers[Sequence[Pair]]):
    summed = ("loss", "reward_accuracy", "reward_margin")

    def __init__(
        self, pairs: Sequence[Pair], held_out: Sequence[Pair], source: str, beta: float = 0.1, pack: bool = True
    ) -> None:
        super().__init__(pairs, held_out, source, pack)
        self.beta = beta
        self._reference: tuple[Tensor, Tensor] | None = None  # of the pairs, and of the held-out ones

    def use_reference(self, pairs: Tensor, held_out: Tensor) -> None:
        """The log-probabilities of the model at the start."""
        self._reference = pairs, held_out

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        data = self.data_of(held_out)
        packed = pack_rows([answer for row in rows for answer in data[row]], self.pack)
        inputs = {**packed.inputs, "labels": packed.targets, "answers": packed.row_indices}
        if self._reference is not None:
            inputs["reference"] = self._reference[held_out][torch.as_tensor(list(rows))]
        return ExampleBatch(inputs, torch.arange(len(rows)), list(rows))

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        return self._loss(self._margins(model, batch))

    def _loss(self, margins: Tensor) -> Tensor:
        smoothing = self.label_smoothing  # the share of pairs that may be the wrong way round
        return -((1 - smoothing) * F.logsigmoid(margins) + smoothing * F.logsigmoid(-margins)).sum()

    def sums(self, model: Any, batch: ExampleBatch) -> Mapping[str, Tensor]:
        margins = self._margins(model, batch)
        return {"loss": self._loss(margins), "reward_accuracy": (margins > 0).sum(), "reward_margin": margins.sum()}

    def _margins(self, model: Any, batch: ExampleBatch) -> Tensor:
        """How much larger the reward of the chosen answer is, for each pair."""
        log_probabilities = self.log_probabilities(model, batch)
        rewards = self.beta * (log_probabilities - batch.inputs["reference"].to(log_probabilities.dtype))
        return rewards[:, 0] - rewards[:, 1]

    def log_probabilities(self, model: Any, batch: ExampleBatch) -> Tensor:
        """Of each answer, the sum over its tokens."""
        labels = batch.inputs["labels"]
        known = labels != IGNORED
        states = self.run_base(model, batch).last_hidden_state[known]
        logits = model.head_module(states)
        losses = F.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)), labels[known], reduction="none"
        )
        sums = losses.new_zeros(2 * len(batch.targets)).index_add(0, batch.inputs["answers"][known], -losses)
        return sums.view(-1, 2)

    def fingerprint(self) -> str:
        return f"{self.source} {self.beta}"
