"""How well a model writes a text for another, beside the texts that are right."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_seconds, pluralize
from glassformer.views.view import View

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
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"TextToTextEvaluation({self.exact_match:.1%} of {self.sources} exact, {self.edit_distance:.2f} edits)"


def draw(view: TextToTextEvaluation, everything: bool = False) -> Page:
    title = f"{view.model}: {pluralize(view.sources, 'source')} of {view.data}"
    rows = (
        ("exact match", f"{view.exact_match:.4f}", "the share of answers that are exactly right"),
        ("edit distance", f"{view.edit_distance:.2f}", "characters to mend in an answer, on average"),
        ("character error rate", f"{view.character_error_rate:.4f}", "the same for a character of the targets"),
        ("loss", f"{view.loss:.4f}", "nats per token"),
    )
    measures = (Column("", "text"), Column("", "number"), Column("", "text"))
    parts: list[PagePart] = [Heading(title), Table(measures, tuple(map(TableRow, rows)))]
    if view.answers:
        shown = view.answers if everything else view.answers[:MOST_ANSWERS]
        columns = (
            Column("row", priority=6), Column("edits", "number"), Column("source", min_width=8),
            Column("target", min_width=8), Column("answered", min_width=8),
        )  # fmt: skip
        cells = [(row.place, str(row.edits), row.source, row.expected, row.answered) for row in shown]
        parts += [Heading("farthest off"), Table(columns, tuple(map(TableRow, cells)))]
    return Page(title, (*parts, Paragraph(format_seconds(view.seconds))))
