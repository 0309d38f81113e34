"""How well a model labels texts or the words of texts, or writes a text for another, beside what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, format_seconds, pluralize
from glassformer.see.view import View

MOST_LABELS = 30  # of a confusion matrix that is shown unless everything is
MOST_MISTAKES = 10


@dataclass(frozen=True)
class LabelScores:
    """How well one label is found."""

    label: str
    precision: float  # of what was given this label, the share that has it
    recall: float  # of what has this label, the share that was given it
    f1: float  # their harmonic mean
    support: int  # how many have this label


@dataclass(frozen=True)
class Mistake:
    place: str  # the row's
    text: str
    expected: str
    answered: str
    probability: float  # that the model gave its answer


@dataclass(frozen=True)
class ClassificationEvaluation(View):
    """A classifier's labels of texts beside the right ones."""

    SCHEMA = "glassformer.classification/1"

    model: str
    data: str
    texts: int
    truncated: int  # texts that were cut, because they were too long
    loss: float  # nats per text
    accuracy: float
    macro_f1: float  # the mean over the labels that occur
    labels: tuple[LabelScores, ...]
    confusion: tuple[tuple[int, ...], ...]  # how often each label (rows) was answered as each (columns)
    mistakes: tuple[Mistake, ...]  # the ones that the model was surest of
    seconds: float

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: {pluralize(self.texts, 'text')} of {self.data}"
        rows = [
            ("accuracy", f"{self.accuracy:.4f}", "the share of texts that are labeled right"),
            ("macro F1", f"{self.macro_f1:.4f}", "the mean over labels, frequent or rare"),
            ("loss", f"{self.loss:.4f}", "nats per text"),
        ]
        parts: list[PagePart] = [_summary(rows), Heading("labels"), _scores("label", self.labels)]
        parts += _confusions(self.labels, self.confusion, everything)
        if self.mistakes:
            shown = self.mistakes if everything else self.mistakes[:MOST_MISTAKES]
            columns = (
                Column("row", priority=6), Column("label", min_width=6), Column("answered", min_width=6),
                Column("probability", "number", priority=7), Column("text", min_width=10),
            )  # fmt: skip
            cells = [(row.place, row.expected, row.answered, format_percent(row.probability), row.text) for row in shown]
            parts += [Heading("most confident mistakes"), Table(columns, tuple(map(TableRow, cells)))]
        parts.append(_note(self.truncated, self.seconds, "cut at the model's limit"))
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"ClassificationEvaluation({self.accuracy:.1%} of {self.texts} texts right, macro F1 {self.macro_f1:.3f})"


@dataclass(frozen=True)
class TaggingEvaluation(View):
    """A tagger's tags of words beside the right ones; and the entities that IOB2 tags mark."""

    SCHEMA = "glassformer.tagging/1"

    model: str
    data: str
    texts: int
    words: int
    truncated: int  # texts that were cut; the words behind are not counted
    loss: float  # nats per word
    accuracy: float
    macro_f1: float  # the mean over the tags that occur
    entity_f1: float | None  # of entities that are found with exactly their words and their type; None: no IOB2 tags
    labels: tuple[LabelScores, ...]  # of words
    entities: tuple[LabelScores, ...]  # of whole entities, by type
    confusion: tuple[tuple[int, ...], ...]  # how often each tag (rows) was answered as each (columns)
    seconds: float

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: {pluralize(self.words, 'word')} of {self.data}"
        rows = [("accuracy", f"{self.accuracy:.4f}", "the share of words that are tagged right")]
        if self.entity_f1 is not None:
            rows.append(("entity F1", f"{self.entity_f1:.4f}", "whole entities with exactly their words and their type"))
        rows += [
            ("macro F1", f"{self.macro_f1:.4f}", "the mean over tags, frequent or rare"),
            ("loss", f"{self.loss:.4f}", "nats per word"),
        ]
        parts: list[PagePart] = [_summary(rows)]
        if self.entities:
            parts += [Heading("entities"), _scores("type", self.entities)]
        parts += [Heading("tags"), _scores("tag", self.labels), *_confusions(self.labels, self.confusion, everything)]
        parts.append(_note(self.truncated, self.seconds, "cut at the model's limit; the words behind are not counted"))
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        entities = "" if self.entity_f1 is None else f", entity F1 {self.entity_f1:.3f}"
        return f"TaggingEvaluation({self.accuracy:.1%} of {self.words} words right{entities})"


def _summary(rows: Sequence[tuple[str, str, str]]) -> Table:
    return Table((Column("", "text"), Column("", "number"), Column("", "text")), tuple(map(TableRow, rows)))


def _scores(what: str, scores: Sequence[LabelScores]) -> Table:
    columns = (
        Column(what, min_width=6), Column("precision", "number"), Column("recall", "number"), Column("F1", "number"),
        Column("support", "number"), Column("", "bar", priority=6),
    )  # fmt: skip
    rows = [
        (row.label, f"{row.precision:.3f}", f"{row.recall:.3f}", f"{row.f1:.3f}", f"{row.support:,}", row.f1)
        for row in scores
    ]
    return Table(columns, tuple(map(TableRow, rows)))


def _confusions(labels: Sequence[LabelScores], table: Sequence[Sequence[int]], everything: bool) -> list[PagePart]:
    """The matrix as a picture, each row's shades adding up to one; of many labels, the pairs that are confused most."""
    names = tuple(label.label for label in labels)
    if len(names) <= MOST_LABELS or everything:
        shares = tuple(tuple(count / max(1, sum(row)) for count in row) for row in table)
        texts = tuple(tuple(f"{count:,}" if count else "" for count in row) for row in table)
        notes = tuple(tuple(f"{count:,} of {sum(row):,}" for count in row) for row in table)
        grid = Grid(names, names, shares, texts, notes, all_columns=True)
        return [Heading("confusion matrix"), Paragraph("each row is a label, each column what was answered", "dim"), grid]
    wrong = [
        (count, names[row], names[index])
        for row, counts in enumerate(table)
        for index, count in enumerate(counts)
        if row != index
    ]
    pairs = [(f"{count:,}", label, answer) for count, label, answer in sorted(wrong, reverse=True)[:MOST_MISTAKES] if count]
    if not pairs:
        return []
    columns = (Column("times", "number"), Column("label", min_width=6), Column("answered", min_width=6))
    return [Heading("most often confused"), Table(columns, tuple(map(TableRow, pairs)))]


def _note(truncated: int, seconds: float, how: str) -> Paragraph:
    cut = [f"{pluralize(truncated, 'text')} {how}"] if truncated else []
    return Paragraph(" · ".join([*cut, format_seconds(seconds)]))


MOST_ANSWERS = 10


@dataclass(frozen=True)
class WrittenAnswer:
    place: str  # the row's
    source: str
    expected: str  # of several right ones, the nearest
    answered: str
    edits: int  # characters to put in, take out or replace


@dataclass(frozen=True)
class TextToTextEvaluation(View):
    """What a model writes for sources beside the right targets; of several that are right, the nearest counts."""

    SCHEMA = "glassformer.text-to-text/1"

    model: str
    data: str
    sources: int
    loss: float  # nats per token of the targets
    exact_match: float  # the share of sources with exactly a right answer
    edit_distance: float  # characters to put in, take out or replace, for a source on average
    character_error_rate: float  # the same for a character of the targets
    answers: tuple[WrittenAnswer, ...]  # the ones that are farthest off
    seconds: float

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: {pluralize(self.sources, 'source')} of {self.data}"
        rows = (
            ("exact match", f"{self.exact_match:.4f}", "the share of answers that are exactly right"),
            ("edit distance", f"{self.edit_distance:.2f}", "characters to mend in an answer, on average"),
            ("character error rate", f"{self.character_error_rate:.4f}", "the same for a character of the targets"),
            ("loss", f"{self.loss:.4f}", "nats per token"),
        )
        parts: list[PagePart] = [_summary(rows)]
        if self.answers:
            shown = self.answers if everything else self.answers[:MOST_ANSWERS]
            columns = (
                Column("row", priority=6), Column("edits", "number"), Column("source", min_width=8),
                Column("target", min_width=8), Column("answered", min_width=8),
            )  # fmt: skip
            cells = [(row.place, str(row.edits), row.source, row.expected, row.answered) for row in shown]
            parts += [Heading("farthest off"), Table(columns, tuple(map(TableRow, cells)))]
        return Page.titled(title, *parts, Paragraph(format_seconds(self.seconds)))

    def __repr__(self) -> str:
        return f"TextToTextEvaluation({self.exact_match:.1%} of {self.sources} exact, {self.edit_distance:.2f} edits)"
