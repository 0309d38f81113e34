"""A text's tokens in the terminal: a compact table, and the sizes of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
from rich.text import Text

from glassformer.observe.tokens import Cut, Piece
from glassformer.show.terminal import MOST_TOKENS, tame, visible, vocabulary

HEADINGS = ("", "id", "token", "text", "characters", "word")
SPELT = (2, 3)  # the columns that give way where there is little room
LEAST = 6
BETWEEN = "  "


def cut(found: Cut, everything: bool = False) -> RenderableType:
    """The table, shortened in the middle unless `everything` is wanted, and what it adds up to."""
    characters = len(found.text) + len(found.pair or "")
    many, long = ("" if count == 1 else "s" for count in (len(found.tokens), characters))
    told = Text(f"\n{len(found.tokens):,} token{many} of {characters:,} character{long}")
    return Group(Pieces(found.tokens, everything), told, vocabulary(found.vocabulary))


@dataclass(frozen=True)
class Pieces:
    """The table. Its lines are laid out here, since a text may have a hundred thousand tokens."""

    pieces: Sequence[Piece]
    everything: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        half = MOST_TOKENS // 2
        left_out = 0 if self.everything else max(0, len(self.pieces) - MOST_TOKENS)
        shown = self.pieces if not left_out else [*self.pieces[:half], *self.pieces[-half:]]
        two = any(piece.second for piece in self.pieces)
        rows = [row(piece, two) for piece in shown]
        if left_out:
            rows.insert(half, ("…", f"{left_out:,}", "more", "(--all)", "", ""))
        widths = [max(map(cell_len, column)) for column in zip(HEADINGS, *rows, strict=True)]
        over = sum(widths) + len(BETWEEN) * (len(widths) - 1) - options.max_width
        for column in SPELT:
            less = min(max(0, over), max(0, widths[column] - LEAST))
            widths[column], over = widths[column] - less, over - less
        faint, marked = console.get_style("dim"), console.get_style("bold magenta")
        yield Segment(line(HEADINGS, widths), faint)
        yield Segment.line()
        for one in rows:
            yield Segment(line(one, widths), marked if one[-1] in ("special", "added") else None)
            yield Segment.line()


def row(piece: Piece, two: bool) -> tuple[str, ...]:
    """A token's columns; of `two` texts, it is said which one it stands in."""
    which = "2: " if piece.second else "1: "
    return (
        str(piece.position),
        str(piece.id),
        tame(piece.token).replace("\n", "⏎").replace("\t", "⇥"),
        visible(piece.text),
        "" if piece.start is None else f"{which if two else ''}{piece.start}–{piece.end}",
        "special" if piece.special else "added" if piece.added else "" if piece.word is None else str(piece.word),
    )


def line(columns: Sequence[str], widths: Sequence[int]) -> str:
    """Columns side by side: what is spelt to the left, numbers to the right."""
    told = []
    for number, (column, width) in enumerate(zip(columns, widths, strict=True)):
        size = cell_len(column)
        if size > width:
            told.append(set_cell_size(column, width - 1) + "…")
        else:
            blank = " " * (width - size)
            told.append(column + blank if number in SPELT else blank + column)
    return BETWEEN.join(told).rstrip()
