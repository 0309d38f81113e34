"""Objectives of classification: a label for each text, or for each of its tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.families.shared.base import IGNORED
from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.labels import Labels, TaggedText, read_tagged_text
from glassformer.training.measures import Confusions, accuracy, confusion, entity_counts, macro_f1, total_scores
from glassformer.training.objectives.encoded_texts import EncodedTexts, Offsets, Text, encode_texts
from glassformer.training.objectives.objective import ExampleBatch, Measures, Objective, RaggedRows
from glassformer.training.rows import LABEL, PAIR, TEXT, DataRow, rows_digest

BATCH = 64  # texts that are labelled at once


class LabelledTexts(Objective):
    def __init__(
        self, tokenizer: Tokenizer, labels: Labels, rows: Sequence[DataRow], held_out: Sequence[DataRow], limit: int
    ) -> None:
        """`limit`: the tokens of a text, at most; what is longer is cut."""
        self.labels = labels
        self._texts, self._targets = self.encode(tokenizer, rows, limit)
        self._held_out, self._held_out_targets = self.encode(tokenizer, held_out, limit)
        cut = [rows[number] for number in self._texts.truncated] + [held_out[number] for number in self._held_out.truncated]
        self.truncated = [row.place for row in cut]
        self._digest = rows_digest([*rows, *held_out])

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow], limit: int) -> tuple[EncodedTexts, RaggedRows]:
        """The rows' texts, and the numbers of their labels."""

    @property
    def examples(self) -> int:
        return len(self._targets)

    @property
    def held_out(self) -> int:
        return len(self._held_out_targets)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        texts, targets = (self._held_out, self._held_out_targets) if held_out else (self._texts, self._targets)
        return ExampleBatch(texts.inputs(rows), targets.padded(rows, IGNORED)[0], list(rows))

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        return self.logits_loss(model(**batch.inputs).logits, batch.targets)

    def logits_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        scores = logits.float().flatten(0, -2)
        return F.cross_entropy(
            scores, targets.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=self.label_smoothing
        )

    def held_out_logits(self, model: Any, most: int | None = None) -> Iterator[tuple[ExampleBatch, Tensor]]:
        """The held-out examples in batches, and what the model says of each."""
        for batch in self.held_out_batches(BATCH, most):
            moved = batch.to(model.device)
            with torch.no_grad():
                yield moved, model(**moved.inputs).logits.float()

    def fingerprint(self) -> str:
        return self._digest


class TextClassification(LabelledTexts):
    head = "sequence"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow], limit: int) -> tuple[EncodedTexts, RaggedRows]:
        targets = [[self.labels.number(row.get(LABEL), row.place)] for row in rows]
        texts, _ = encode_texts(tokenizer, texts_of(rows), limit)
        return texts, RaggedRows(targets)

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        expected: list[int] = []
        answered: list[int] = []
        for batch, logits in self.held_out_logits(model, most):
            expected += batch.targets.flatten().tolist()
            answered += logits.argmax(-1).tolist()
        table = confusion(expected, answered, len(self.labels.names))
        return {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}


def texts_of(rows: Sequence[DataRow]) -> list[Text]:
    """The rows' texts, with their second ones; all rows have one, or none has."""
    paired = bool(rows) and rows[0].has(PAIR)
    texts: list[Text] = []
    for row in rows:
        if row.has(PAIR) != paired:
            other = "lacks a second text, which the first row has" if paired else "has a second text, and the first row none"
            raise InputError(f"{row.place}: {other} ({PAIR[0]!r}). Give it to all rows, or to none.")
        texts.append((row.text(TEXT), row.text(PAIR)) if paired else row.text(TEXT))
    return texts


class TokenClassification(LabelledTexts):
    """The last words of a text that is cut are not seen."""

    head = "token"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow], limit: int) -> tuple[EncodedTexts, RaggedRows]:
        tagged = [read_tagged_text(row) for row in rows]
        numbers = [[self.labels.number(tag, text.place) for tag in text.tags] for text in tagged]
        texts, offsets = encode_texts(tokenizer, [text.text for text in tagged], limit)
        return texts, RaggedRows([token_targets(*row) for row in zip(tagged, numbers, offsets, strict=True)])

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        expected: list[list[str]] = []
        answered: list[list[str]] = []
        for batch, logits in self.held_out_logits(model, most):
            for truth, guess in self.word_tags(batch, logits):
                expected.append(truth)
                answered.append(guess)
        table, counts = self.confusion(expected, answered), entity_counts(expected, answered)
        measures = {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}
        return measures | ({"entity_f1": total_scores(counts)[2]} if counts else {})

    def word_tags(self, batch: ExampleBatch, logits: Tensor) -> list[tuple[list[str], list[str]]]:
        """Of each text, the tags of its words: those that are right, and those that the model gives."""
        rows = []
        for targets, best in zip(batch.targets.cpu(), logits.argmax(-1).cpu(), strict=True):
            words = targets != IGNORED
            truth, guess = ([self.labels.names[number] for number in side[words].tolist()] for side in (targets, best))
            rows.append((truth, guess))
        return rows

    def confusion(self, expected: Sequence[Sequence[str]], answered: Sequence[Sequence[str]]) -> Confusions:
        """How often the words of each tag were given each, over all texts."""
        numbers = {name: index for index, name in enumerate(self.labels.names)}
        truths, guesses = ([numbers[tag] for tag in chain(*side)] for side in (expected, answered))
        return confusion(truths, guesses, len(numbers))


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
