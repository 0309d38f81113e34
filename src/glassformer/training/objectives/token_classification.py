"""Say which tag each word of a text has.

The first token of a word carries its tag; its other tokens, and those around the text, carry none.

Shapes: ids (batch, length); targets the same, -100 where there is no tag; logits (batch, length, tags).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import Tensor

from glassformer.families.shared.base import IGNORED
from glassformer.text import Tokenizer
from glassformer.training.measures import Confusions, accuracy, confusion, entity_counts, macro_f1, total_scores
from glassformer.training.objectives.encoded_texts import EncodedTexts, Offsets, encode_texts
from glassformer.training.objectives.labelled_texts import LabelledTexts
from glassformer.training.objectives.objective import Batch, Measures, RaggedRows
from glassformer.training.rows import Row
from glassformer.training.tagged_text import TaggedText, read_tagged_text


class TokenClassification(LabelledTexts):
    """The last words of a text that is cut are not seen."""

    head = "token"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], limit: int) -> tuple[EncodedTexts, RaggedRows]:
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

    def word_tags(self, batch: Batch, logits: Tensor) -> list[tuple[list[str], list[str]]]:
        """Of each text, the tags of its words: those that are right, and those that the model gives."""
        rows = []
        for targets, best in zip(batch.targets.cpu(), logits.argmax(-1).cpu(), strict=True):
            words = targets != IGNORED
            truth, guess = ([self.labels.names[number] for number in side[words].tolist()] for side in (targets, best))
            rows.append((truth, guess))
        return rows

    def confusion(self, expected: Sequence[Sequence[str]], answered: Sequence[Sequence[str]]) -> Confusions:
        """How often the words of each tag were given each, over all texts."""
        numbers = {name: number for number, name in enumerate(self.labels.names)}
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
