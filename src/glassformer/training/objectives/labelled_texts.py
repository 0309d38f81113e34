"""Texts with labels: what classifying a text and tagging its words have in common.

Shapes: ids (batch, length); targets (batch, 1) for texts or (batch, length) for words, -100 where there is no label; logits
the same but for targets' last axis, and labels behind it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.families.shared.base import IGNORED
from glassformer.text import Tokenizer
from glassformer.training.labels import Labels
from glassformer.training.objectives.encoded_texts import EncodedTexts
from glassformer.training.objectives.objective import Batch, Objective, RaggedRows
from glassformer.training.rows import Row, rows_digest

BATCH = 64  # texts that are labelled at once


class LabelledTexts(Objective):
    def __init__(
        self, tokenizer: Tokenizer, labels: Labels, rows: Sequence[Row], held_out: Sequence[Row], limit: int
    ) -> None:
        """`limit`: the tokens of a text, at most; what is longer is cut."""
        self.labels = labels
        self._texts, self._targets = self.encode(tokenizer, rows, limit)
        self._held_out, self._held_out_targets = self.encode(tokenizer, held_out, limit)
        cut = [rows[number] for number in self._texts.truncated] + [held_out[number] for number in self._held_out.truncated]
        self.truncated = [row.place for row in cut]
        self._digest = rows_digest([*rows, *held_out])

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], limit: int) -> tuple[EncodedTexts, RaggedRows]:
        """The rows' texts, and the numbers of their labels."""

    @property
    def examples(self) -> int:
        return len(self._targets)

    @property
    def held_out(self) -> int:
        return len(self._held_out_targets)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> Batch:
        texts, targets = (self._held_out, self._held_out_targets) if held_out else (self._texts, self._targets)
        return Batch(texts.inputs(rows), targets.padded(rows, IGNORED)[0], list(rows))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        return self.logits_loss(model(**batch.inputs).logits, batch.targets)

    def logits_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        scores = logits.float().flatten(0, -2)
        return F.cross_entropy(
            scores, targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=self.label_smoothing
        )

    def held_out_logits(self, model: Any, most: int | None = None) -> Iterator[tuple[Batch, Tensor]]:
        """The held-out examples in batches, and what the model says of each."""
        for batch in self.held_out_batches(BATCH, most):
            moved = batch.to(model.device)
            with torch.no_grad():
                yield moved, model(**moved.inputs).logits.float()

    def fingerprint(self) -> str:
        return self._digest
