"""Say which label a text has, or a text and a second one.

Shapes: ids (batch, length); targets (batch,); logits (batch, labels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.labels import Labels
from glassformer.training.measures import accuracy, confusion, macro_f1
from glassformer.training.objectives.encoded_texts import EncodedTexts, Text, encode_texts
from glassformer.training.objectives.objective import Batch, Measures, Objective
from glassformer.training.rows import LABEL, PAIR, TEXT, Row, rows_digest


class TextClassification(Objective):
    head = "sequence"

    def __init__(
        self, tokenizer: Tokenizer, labels: Labels, rows: Sequence[Row], held_out: Sequence[Row], limit: int
    ) -> None:
        """`limit`: the tokens of a text, at most; what is longer is cut."""
        self.labels = labels
        self._texts, self._targets = self._encode(tokenizer, rows, limit)
        self._held_out, self._held_out_targets = self._encode(tokenizer, held_out, limit)
        self.truncated = [rows[number].place for number in self._texts.truncated]
        self.truncated_held_out = [held_out[number].place for number in self._held_out.truncated]
        self._digest = rows_digest([*rows, *held_out])

    def _encode(self, tokenizer: Tokenizer, rows: Sequence[Row], limit: int) -> tuple[EncodedTexts, Tensor]:
        targets = [self.labels.number(row.get(LABEL), row.place) for row in rows]
        texts, _ = encode_texts(tokenizer, texts_of(rows), limit)
        return texts, torch.tensor(targets, dtype=torch.int64)

    @property
    def examples(self) -> int:
        return len(self._targets)

    @property
    def held_out(self) -> int:
        return len(self._held_out_targets)

    @property
    def expected(self) -> list[int]:
        """The labels of the held-out texts."""
        numbers: list[int] = self._held_out_targets.tolist()
        return numbers

    def batch(self, rows: Sequence[int], held_out: bool = False) -> Batch:
        texts, targets = (self._held_out, self._held_out_targets) if held_out else (self._texts, self._targets)
        return Batch(texts.inputs(rows), targets[list(rows)], list(rows))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        logits = model(**batch.inputs).logits.float()
        return F.cross_entropy(logits, batch.targets, reduction="sum", label_smoothing=self.label_smoothing)

    @torch.no_grad()
    def probabilities(self, model: Any, size: int = 64, most: int | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Those of each label, for each held-out text, (texts, labels)."""
        parts = [
            model(**batch.to(model.device).inputs).logits.float().softmax(-1).cpu().numpy()
            for batch in self.held_out_batches(size, most)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.labels.names)), np.float32)

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        answered = self.probabilities(model, most=most).argmax(-1).tolist()
        table = confusion(self.expected[: len(answered)], answered, len(self.labels.names))
        return {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}

    def fingerprint(self) -> str:
        return self._digest


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
