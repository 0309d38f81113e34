"""Say which tag each word of a text has.

The first token of a word carries its tag; its other tokens, and those around the text, carry none.

Shapes: ids (batch, length); targets the same, -100 where there is no tag; logits (batch, length, tags).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.families.shared.base import IGNORED
from glassformer.text import Tokenizer
from glassformer.training.labels import Labels
from glassformer.training.measures import accuracy, confusion, entity_counts, macro_f1, precision_recall_f1
from glassformer.training.objectives.encoded_texts import EncodedTexts, Offsets, encode_texts
from glassformer.training.objectives.objective import Batch, Measures, Objective, RaggedRows
from glassformer.training.rows import Row, rows_digest
from glassformer.training.tagged_text import TaggedText, read_tagged_text


class TokenClassification(Objective):
    head = "token"

    def __init__(
        self, tokenizer: Tokenizer, labels: Labels, rows: Sequence[Row], held_out: Sequence[Row], limit: int
    ) -> None:
        """`limit`: the tokens of a text, at most; what is longer is cut, and its last words are not seen."""
        self.labels = labels
        self._texts, self._targets = self._encode(tokenizer, rows, limit)
        self._held_out, self._held_out_targets = self._encode(tokenizer, held_out, limit)
        self.truncated = [rows[number].place for number in self._texts.truncated]
        self.truncated_held_out = [held_out[number].place for number in self._held_out.truncated]
        self._digest = rows_digest([*rows, *held_out])

    def _encode(self, tokenizer: Tokenizer, rows: Sequence[Row], limit: int) -> tuple[EncodedTexts, RaggedRows]:
        tagged = [read_tagged_text(row) for row in rows]
        numbers = [[self.labels.number(tag, text.place) for tag in text.tags] for text in tagged]
        texts, offsets = encode_texts(tokenizer, [text.text for text in tagged], limit)
        targets = [token_targets(*row) for row in zip(tagged, numbers, offsets, strict=True)]
        return texts, RaggedRows(targets)

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
        logits, targets = model(**batch.inputs).logits.float().flatten(0, 1), batch.targets.flatten()
        return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def tags(self, model: Any, size: int = 64, most: int | None = None) -> tuple[list[list[int]], list[list[int]]]:
        """The tags of each held-out text's words: those that are right, and those that the model gives."""
        expected, answered = [], []
        for batch in self.held_out_batches(size, most):
            best = model(**batch.to(model.device).inputs).logits.argmax(-1).cpu()
            for targets, row in zip(batch.targets, best, strict=True):
                words = targets != IGNORED
                expected.append(targets[words].tolist())
                answered.append(row[words].tolist())
        return expected, answered

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        expected, answered = self.tags(model, most=most)
        table = confusion([*chain(*expected)], [*chain(*answered)], len(self.labels.names))
        counts = entity_counts(self.named(expected), self.named(answered))
        measures = {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}
        return measures | ({"entity_f1": total_scores(counts)[2]} if counts else {})

    def named(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        """Tags by their names."""
        return [[self.labels.names[number] for number in row] for row in rows]

    def fingerprint(self) -> str:
        return self._digest


def token_targets(text: TaggedText, numbers: Sequence[int], offsets: Offsets) -> list[int]:
    """The tag of each token: of the first that has a part of a word, the word's. A word that was cut off has none."""
    targets = [IGNORED] * len(offsets)
    token = 0
    for (start, _), number in zip(text.words, numbers, strict=True):
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        if token == len(offsets):
            break
        if targets[token] == IGNORED:  # a token of several words has the first one's tag
            targets[token] = number
    return targets


def total_scores(counts: dict[str, tuple[int, int, int]]) -> tuple[float, float, float]:
    """Precision, recall and F1 of entities of all types together."""
    found, answered, expected = (sum(column) for column in zip(*counts.values(), strict=True)) if counts else (0, 0, 0)
    return precision_recall_f1(found, answered, expected)
