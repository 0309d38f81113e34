"""Objectives of classification: a label for each text, or for each of its tokens."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.text import Tokenizer
from glassformer.torch.arguments import WatchLike
from glassformer.torch.base import IGNORED
from glassformer.training.labels import Labels, TaggedText, read_tagged_text
from glassformer.training.measures import Confusions, accuracy, confusion, entity_counts, macro_f1, total_scores
from glassformer.training.objectives.objective import ExampleBatch, Measures, Objective, RaggedRows
from glassformer.training.rows import LABEL, PAIR, TEXT, DataRow, rows_digest

BATCH = 64  # texts that are labelled at once
CHUNK = 1024  # texts that are encoded at once
Answer = TypeVar("Answer")  # a text's label, or the tags of its words


Text: TypeAlias = str | tuple[str, str]  # alone, or with a second one
Offsets: TypeAlias = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class EncodedTexts:
    """Texts as a model with a task head reads them, cut where they are too long."""

    ids: RaggedRows
    types: RaggedRows | None
    pad: int
    truncated: tuple[int, ...]  # the indices of the texts that were cut

    def inputs(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Some texts as the model's inputs."""
        ids, mask = self.ids.padded(rows, self.pad)
        types = {} if self.types is None else {"token_type_ids": self.types.padded(rows, 0)[0]}
        return {"input_ids": ids, "attention_mask": mask, **types}


def encode_texts(tokenizer: Tokenizer, texts: Sequence[Text], limit: int) -> tuple[EncodedTexts, Sequence[Offsets]]:
    """Texts of at most `limit` tokens each; and where each token stands in its text, or (0, 0) for those around it."""
    parts: dict[str, list[Any]] = {"input_ids": [], "token_type_ids": [], "offset_mapping": []}
    truncated: list[int] = []
    for start in range(0, len(texts), CHUNK):
        part = texts[start : start + CHUNK]
        encoded: Any = tokenizer(part, return_offsets_mapping=True)
        long = [index for index, row in enumerate(encoded["input_ids"], start) if len(row) > limit]
        if long:
            truncated += long
            encoded = tokenizer(part, return_offsets_mapping=True, truncation=True, max_length=limit)
        for name, values in parts.items():
            values += encoded.get(name, [])
    ids, types, offsets = parts.values()
    pad = tokenizer.pad_token_id or 0  # masked, so any id would do
    return EncodedTexts(RaggedRows(ids), RaggedRows(types) if types else None, pad, tuple(truncated)), offsets


@dataclass(frozen=True)
class LabelledTexts:
    """Texts, and the indices of their labels, or of those of their tokens."""

    texts: EncodedTexts
    targets: RaggedRows

    def __len__(self) -> int:
        return len(self.targets)


@dataclass
class GivenLabels(Generic[Answer]):
    """Labels that a model gives to held-out texts, beside the right ones."""

    loss: float = 0.0  # summed
    expected: list[Answer] = field(default_factory=list)
    answered: list[Answer] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)  # of a text's label


class Classification(Objective[LabelledTexts], Generic[Answer]):
    def __init__(
        self, tokenizer: Tokenizer, labels: Labels, rows: Sequence[DataRow], held_out: Sequence[DataRow], limit: int
    ) -> None:
        """`limit`: the tokens of a text, at most; what is longer is cut."""
        self.labels = labels
        data, held_out_data = self.encode(tokenizer, rows, limit), self.encode(tokenizer, held_out, limit)
        super().__init__(data, held_out_data, rows_digest([*rows, *held_out]))
        cut = [*(rows[row] for row in data.texts.truncated), *(held_out[row] for row in held_out_data.texts.truncated)]
        self.truncated = [row.place for row in cut]

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow], limit: int) -> LabelledTexts: ...

    @abstractmethod
    def add_answers(self, given: GivenLabels[Answer], targets: Tensor, logits: Tensor) -> None:
        """What the logits of some texts say, beside what is right."""

    @abstractmethod
    def confusion(self, given: GivenLabels[Answer]) -> Confusions:
        """How often each label was given for each."""

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        data = self.data_of(held_out)
        return ExampleBatch(data.texts.inputs(rows), data.targets.padded(rows, IGNORED)[0], list(rows))

    def run_base(self, model: Any, batch: ExampleBatch, watch: WatchLike = None) -> Any:
        """With the head, by which a decoder is told what to read."""
        return model(**batch.inputs, watch=watch)

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        return self.logits_loss(model(**batch.inputs).logits, batch.targets)

    def logits_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(
            logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="sum",
            label_smoothing=self.label_smoothing,
        )  # fmt: skip

    @torch.no_grad()
    def answer(self, model: Any, most: int | None = None, progress: Progress | None = None) -> GivenLabels[Answer]:
        """What the model answers to the held-out examples."""
        given: GivenLabels[Answer] = GivenLabels()
        for batch in self.held_out_batches(BATCH, most):
            moved = batch.to(model.device)
            logits = model(**moved.inputs).logits.float()
            given.loss += float(self.logits_loss(logits, moved.targets))
            self.add_answers(given, moved.targets, logits)
            if progress is not None:
                progress(len(given.expected), self.held_out)
        return given

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        table = self.confusion(self.answer(model, most))
        return {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}


class TextClassification(Classification[int]):
    head = "sequence"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow], limit: int) -> LabelledTexts:
        targets = [[self.labels.index(row.get(LABEL), row.place)] for row in rows]
        return LabelledTexts(encode_texts(tokenizer, texts_of(rows), limit)[0], RaggedRows(targets))

    def add_answers(self, given: GivenLabels[int], targets: Tensor, logits: Tensor) -> None:
        best = logits.softmax(-1).max(-1)
        given.expected += targets.flatten().tolist()
        given.answered += best.indices.tolist()
        given.probabilities += best.values.tolist()

    def confusion(self, given: GivenLabels[int]) -> Confusions:
        return confusion(given.expected, given.answered, len(self.labels.names))


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


class TokenLabelling(Classification[list[str]]):
    """The last words of a text that is cut are not seen."""

    head = "token"

    def encode(self, tokenizer: Tokenizer, rows: Sequence[DataRow], limit: int) -> LabelledTexts:
        tagged = [read_tagged_text(row) for row in rows]
        labels = [[self.labels.index(tag, text.place) for tag in text.tags] for text in tagged]
        texts, offsets = encode_texts(tokenizer, [text.text for text in tagged], limit)
        targets = [token_targets(*row) for row in zip(tagged, labels, offsets, strict=True)]
        return LabelledTexts(texts, RaggedRows(targets))

    def add_answers(self, given: GivenLabels[list[str]], targets: Tensor, logits: Tensor) -> None:
        """The tags of the texts' words."""
        for row, best in zip(targets.cpu(), logits.argmax(-1).cpu(), strict=True):
            words = row != IGNORED
            for answers, labels in ((given.expected, row), (given.answered, best)):
                answers.append([self.labels.names[label] for label in labels[words].tolist()])

    def confusion(self, given: GivenLabels[list[str]]) -> Confusions:
        indices = {name: index for index, name in enumerate(self.labels.names)}
        expected, answered = ([indices[tag] for tag in chain(*side)] for side in (given.expected, given.answered))
        return confusion(expected, answered, len(indices))

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        given = self.answer(model, most)
        table, counts = self.confusion(given), entity_counts(given.expected, given.answered)
        measures = {"accuracy": accuracy(table), "macro_f1": macro_f1(table)}
        return measures | ({"entity_f1": total_scores(counts)[2]} if counts else {})


def token_targets(text: TaggedText, labels: Sequence[int], offsets: Offsets) -> list[int]:
    """The tag of each token: of the first that has a part of a word, the word's. A word that was cut off has none."""
    targets = [IGNORED] * len(offsets)
    token = 0
    for (start, _), label in zip(text.words, labels, strict=True):
        while token < len(offsets) and offsets[token][1] <= start:
            token += 1
        if token == len(offsets):
            break
        if targets[token] == IGNORED:  # a token of several words has the first one's tag
            targets[token] = label
    return targets
