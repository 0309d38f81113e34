"""A text split into its tokens, each with its place in the text and the word it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.ground.errors import InputError, did_you_mean
from glassformer.page.document import Column, Page, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import pluralize, reveal_line, visible
from glassformer.views.view import View
from glassformer.views.vocabulary import VocabularySizes

MAX_TOKENS = 96  # of a long text, unless everything is shown
COLUMNS = (
    Column("", "number"),
    Column("id", "number"),
    Column("token", "token", min_width=6),
    Column("text", "token", min_width=6),
    Column("characters", "number"),
    Column("word", "number"),
    Column("bytes", priority=2),
)


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
        raise InputError(f"no token matches {token!r}.{did_you_mean(token, [text.strip() for text in texts])}")
    return positions[-1]


@dataclass(frozen=True)
class Token:
    """One token of a prompt."""

    position: int
    id: int
    token: str  # as in the vocabulary
    text: str  # as it reads; half a character as its bytes
    special: bool  # a control token, such as <|im_end|>


@dataclass(frozen=True)
class TextToken(Token):
    """One token of a text, and its place there."""

    start: int | None  # in characters of its text; None for a token added around it
    end: int | None
    word: int | None  # the number of its word
    added: bool  # to the vocabulary after its training
    second: bool = False  # of the second text of two
    bytes: str = ""  # of the text that it adds, in hexadecimal


@dataclass(frozen=True)
class TokenizedText(View):
    """A text, or two, as tokens."""

    SCHEMA = "glassformer.tokens/1"

    model: str
    text: str
    pair: str | None
    tokens: tuple[TextToken, ...]
    vocabulary: VocabularySizes

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)


def draw(view: TokenizedText, everything: bool = False) -> Page:
    pair = any(token.second for token in view.tokens)
    rows = [token_row(token, pair) for token in view.tokens]
    characters = len(view.text) + len(view.pair or "")
    return Page(
        f"{view.model}: {pluralize(len(rows), 'token')}",
        (
            Table(COLUMNS, tuple(rows) if everything else elide_middle(rows, MAX_TOKENS)),
            Paragraph(f"\n{pluralize(len(rows), 'token')} of {pluralize(characters, 'character')}"),
            Paragraph(f"vocabulary: {view.vocabulary}", "dim"),
        ),
    )


def token_row(token: TextToken, pair: bool) -> TableRow:
    """A token's row; with which of the two texts it is in, if there is a `pair`."""
    which = ("2: " if token.second else "1: ") if pair else ""
    kind = "special" if token.special else "added" if token.added else ""
    cells = (
        str(token.position),
        str(token.id),
        reveal_line(token.token),
        visible(token.text),
        "" if token.start is None else f"{which}{token.start}–{token.end}",
        kind or ("" if token.word is None else str(token.word)),
        token.bytes,
    )
    return TableRow(cells, "special" if kind else "")
