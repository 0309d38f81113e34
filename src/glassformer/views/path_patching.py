"""Path patching: how much of an answer goes from some places to others directly, past all other heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import abbreviate_list, reveal_line, tail, visible
from glassformer.views.patching import MAX_CHARACTERS, MAX_PLACES, AnswerToken, bar_length, layer_label
from glassformer.views.view import View


@dataclass(frozen=True)
class PatchedPath:
    """One sender, and how much of the first text's answer it restores by way of the receivers."""

    sender: str  # a site, with its head's number
    block: int | None  # None: the embedding
    head: int | None  # None: not a head
    value: float  # 0: none of the answer's lead; 1: all of it


@dataclass(frozen=True)
class PathPatching(View):
    """How much of the first text's answer each sender restores in the second, by the paths to the receivers alone."""

    SCHEMA = "glassformer.path-patching/1"

    model: str
    texts: tuple[str, str]  # where the senders' values come from, and where they are put
    answers: tuple[AnswerToken, AnswerToken]  # what each text leads to
    differences: tuple[float, float]  # after each text: the first answer's score minus the second's
    receivers: tuple[str, ...]  # sites, with their heads' numbers
    frozen: tuple[str, ...]  # what keeps its values on the way: 'heads', perhaps 'mlps'
    positions: tuple[int, ...]  # at which senders are patched
    paths: tuple[PatchedPath, ...]
    changes: tuple[str, ...]  # sites that were changed throughout

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def strongest(self) -> list[PatchedPath]:
        """All paths, those that move the answer most first, in either direction."""
        return sorted(self.paths, key=lambda path: -abs(path.value))

    def __repr__(self) -> str:
        return f"PathPatching({len(self.paths)} senders to {', '.join(self.receivers)})"


def draw(view: PathPatching, everything: bool = False) -> Page:
    first, second = (visible(answer.text) for answer in view.answers)
    shorten = reveal_line if everything else partial(tail, limit=MAX_CHARACTERS)
    title = f"{view.model}: what goes directly to {abbreviate_list(view.receivers)}"
    frozen = {"heads": "all other heads", "mlps": "the MLPs"}
    return Page(
        title,
        (
            Heading(title),
            Paragraph(
                "\n".join(f"{label}: {shorten(text)}" for label, text in zip(("from", "into"), view.texts, strict=True))
            ),
            *([Paragraph(f"under a change of {abbreviate_list(view.changes)}")] if view.changes else []),
            Paragraph(
                f"each number: how much of the lead of {first} over {second} a sender restores by this path; on the way "
                f"{' and '.join(frozen[name] for name in view.frozen)} keep what they have in the second text",
                "dim",
            ),
            *_grid(view, everything),
            Heading("the senders that bring most"),
            _table(view, everything),
        ),
    )


def _grid(view: PathPatching, everything: bool) -> tuple[PagePart, ...]:
    """A heat map, where the senders are heads of several blocks."""
    values = {(path.block, path.head): path.value for path in view.paths if path.head is not None}
    blocks, heads = (
        (sorted({at for at in numbers if at is not None}) for numbers in zip(*values, strict=True)) if values else ([], [])
    )
    if len(blocks) < 2:
        return ()
    cells = tuple(tuple(values.get((block, head)) for head in heads) for block in blocks)
    texts = tuple(tuple("" if value is None or not round(value, 2) else f"{value:.0%}" for value in row) for row in cells)
    rows, columns = tuple(layer_label(str(block)) for block in blocks), tuple(map(str, heads))
    return (Grid(rows, columns, cells, texts, texts_optional=True, all_columns=everything),)


def _table(view: PathPatching, everything: bool) -> Table:
    rows = [
        TableRow((path.sender, f"{path.value:+.1%}", bar_length(path.value)))
        for path in view.strongest[: None if everything else MAX_PLACES]
    ]
    columns = (Column("sender", min_width=12), Column("restored", "number"), Column("", "signed bar", priority=7))
    return Table(columns, tuple(rows))
