"""A text cut into its tokens: what each is, where it stands in the text, and which word it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.errors import InputError, nearest
from glassformer.page.document import Column, Page, Row, Table, Words, middle
from glassformer.page.format import many, tame, visible
from glassformer.views.view import View
from glassformer.views.vocabulary import Vocabulary


def find_token(token: int | str, texts: Sequence[str]) -> int:
    """A token's position, by number or by its text."""
    if isinstance(token, str) and token.lstrip("-").isdecimal():
        token = int(token)
    if isinstance(token, int):
        if not -len(texts) <= token < len(texts):
            raise InputError(f"there is no token {token} in a text of {len(texts)}.")
        return token % len(texts)
    positions = [number for number, text in enumerate(texts) if text.strip() == token.strip("␣ ")]
    if not positions:
        raise InputError(f"no token reads {token!r}.{nearest(token, [text.strip() for text in texts])}")
    return positions[-1]


@dataclass(frozen=True)
class Token:
    """One token of a prompt."""

    position: int
    id: int
    token: str  # as the vocabulary spells it
    text: str  # as it reads; half a character as its bytes
    special: bool  # one that steers the model, such as <|im_end|>


@dataclass(frozen=True)
class TextToken(Token):
    """One token of a text, and its place there."""

    start: int | None  # where it begins in its text, in characters; None for a token put around the text
    end: int | None
    word: int | None  # the number of its word
    added: bool  # put into the vocabulary after it was trained
    second: bool = False  # of the second text of two
    bytes: str = ""  # what it adds to the text, in hexadecimal


@dataclass(frozen=True)
class TokenizedText(View):
    """A text, or two, as tokens."""

    SCHEMA = "glassformer.tokens/1"

    model: str
    text: str
    pair: str | None
    tokens: tuple[TextToken, ...]
    vocabulary: Vocabulary

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)


MOST = 96  # tokens that are shown of a long text
COLUMNS = (
    Column("", "number"), Column("id", "number"), Column("token", "token", least=6), Column("text", "token", least=6),
    Column("characters", "number"), Column("word", "number"), Column("bytes", keep=2),
)  # fmt: skip


def draw(view: TokenizedText, everything: bool = False) -> Page:
    two = any(piece.second for piece in view.tokens)
    rows = [row(piece, two) for piece in view.tokens]
    characters = len(view.text) + len(view.pair or "")
    return Page(
        f"{view.model}: {many(len(rows), 'token')}",
        (
            Table(COLUMNS, tuple(rows) if everything else middle(rows, MOST)),
            Words(f"\n{many(len(rows), 'token')} of {many(characters, 'character')}"),
            Words(f"vocabulary: {view.vocabulary}", "dim"),
        ),
    )


def row(piece: TextToken, two: bool) -> Row:
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
