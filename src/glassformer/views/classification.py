"""How well a model labels texts, or the words of texts, beside the labels that are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, format_seconds, pluralize
from glassformer.views.view import View

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
        return draw_classification(self, everything)

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
        return draw_tagging(self, everything)

    def __repr__(self) -> str:
        entities = "" if self.entity_f1 is None else f", entity F1 {self.entity_f1:.3f}"
        return f"TaggingEvaluation({self.accuracy:.1%} of {self.words} words right{entities})"


def draw_classification(view: ClassificationEvaluation, everything: bool = False) -> Page:
    title = f"{view.model}: {pluralize(view.texts, 'text')} of {view.data}"
    rows = [
        ("accuracy", f"{view.accuracy:.4f}", "the share of texts that are labeled right"),
        ("macro F1", f"{view.macro_f1:.4f}", "the mean over labels, frequent or rare"),
        ("loss", f"{view.loss:.4f}", "nats per text"),
    ]
    parts: list[PagePart] = [Heading(title), _summary(rows), Heading("labels"), _scores("label", view.labels)]
    parts += _confusions(view.labels, view.confusion, everything)
    if view.mistakes:
        shown = view.mistakes if everything else view.mistakes[:MOST_MISTAKES]
        columns = (
            Column("row", priority=6), Column("label", min_width=6), Column("answered", min_width=6),
            Column("probability", "number", priority=7), Column("text", min_width=10),
        )  # fmt: skip
        cells = [(row.place, row.expected, row.answered, format_percent(row.probability), row.text) for row in shown]
        parts += [Heading("most confident mistakes"), Table(columns, tuple(map(TableRow, cells)))]
    parts.append(_note(view.truncated, view.seconds, "cut at the model's limit"))
    return Page(title, tuple(parts))


def draw_tagging(view: TaggingEvaluation, everything: bool = False) -> Page:
    title = f"{view.model}: {pluralize(view.words, 'word')} of {view.data}"
    rows = [("accuracy", f"{view.accuracy:.4f}", "the share of words that are tagged right")]
    if view.entity_f1 is not None:
        rows.append(("entity F1", f"{view.entity_f1:.4f}", "whole entities with exactly their words and their type"))
    rows += [
        ("macro F1", f"{view.macro_f1:.4f}", "the mean over tags, frequent or rare"),
        ("loss", f"{view.loss:.4f}", "nats per word"),
    ]
    parts: list[PagePart] = [Heading(title), _summary(rows)]
    if view.entities:
        parts += [Heading("entities"), _scores("type", view.entities)]
    parts += [Heading("tags"), _scores("tag", view.labels), *_confusions(view.labels, view.confusion, everything)]
    parts.append(_note(view.truncated, view.seconds, "cut at the model's limit; the words behind are not counted"))
    return Page(title, tuple(parts))


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
        (count, names[row], names[at]) for row, counts in enumerate(table) for at, count in enumerate(counts) if row != at
    ]
    pairs = [(f"{count:,}", label, answer) for count, label, answer in sorted(wrong, reverse=True)[:MOST_MISTAKES] if count]
    if not pairs:
        return []
    columns = (Column("times", "number"), Column("label", min_width=6), Column("answered", min_width=6))
    return [Heading("most often confused"), Table(columns, tuple(map(TableRow, pairs)))]


def _note(truncated: int, seconds: float, how: str) -> Paragraph:
    cut = [f"{pluralize(truncated, 'text')} {how}"] if truncated else []
    return Paragraph(" · ".join([*cut, format_seconds(seconds)]))
