"""Say which label a text has, or a text and a second one.

Shapes: ids (batch, length); targets (batch, 1); logits (batch, labels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.measures import accuracy, confusion, macro_f1
from glassformer.training.objectives.encoded_texts import EncodedTexts, Text, encode_texts
from glassformer.training.objectives.labelled_texts import LabelledTexts
from glassformer.training.objectives.objective import Measures, RaggedRows
from glassformer.training.rows import LABEL, PAIR, TEXT, Row


class TextClassification(LabelledTexts):
    head = "sequence"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[Row], limit: int) -> tuple[EncodedTexts, RaggedRows]:
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


def texts_of(rows: Sequence[Row]) -> list[Text]:
    """The rows' texts, with their second ones; all rows have one, or none has."""
    paired = bool(rows) and rows[0].has(PAIR)
    texts: list[Text] = []
    for row in rows:
        if row.has(PAIR) != paired:
            other = "lacks a second text, which the first row has" if paired else "has a second text, and the first row none"
            raise InputError(f"{row.place}: {other} ({PAIR[0]!r}). Give it to all rows, or to none.")
        texts.append((row.text(TEXT), row.text(PAIR)) if paired else row.text(TEXT))
    return texts
