"""A text's tokens, and what they add up to."""

from __future__ import annotations

from glassformer.observe.tokens import Cut, Piece
from glassformer.show.journey import MOST_TOKENS, vocabulary
from glassformer.show.page import Column, Page, Row, Table, Words, middle
from glassformer.show.words import many, tame, visible

COLUMNS = (
    Column("", "number"), Column("id", "number"), Column("token", "token", least=6), Column("text", "token", least=6),
    Column("characters", "number"), Column("word", "number"), Column("bytes", keep=2),
)  # fmt: skip


def page(found: Cut, everything: bool = False) -> Page:
    two = any(piece.second for piece in found.tokens)
    rows = [row(piece, two) for piece in found.tokens]
    characters = len(found.text) + len(found.pair or "")
    return Page(
        f"{found.model}: {many(len(rows), 'token')}",
        (
            Table(COLUMNS, tuple(rows) if everything else middle(rows, MOST_TOKENS)),
            Words(f"\n{many(len(rows), 'token')} of {many(characters, 'character')}"),
            Words(f"vocabulary: {vocabulary(found.vocabulary)}", "dim"),
        ),
    )


def row(piece: Piece, two: bool) -> Row:
    """A token's columns; of `two` texts, it is said which one it stands in."""
    which = ("2: " if piece.second else "1: ") if two else ""
    kind = "special" if piece.special else "added" if piece.added else ""
    cells = (
        str(piece.position),
        str(piece.id),
        tame(piece.token).replace("\n", "⏎").replace("\t", "⇥"),
        visible(piece.text),
        "" if piece.start is None else f"{which}{piece.start}–{piece.end}",
        kind or ("" if piece.word is None else str(piece.word)),
        piece.bytes,
    )
    return Row(cells, "special" if kind else "")
