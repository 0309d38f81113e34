"""A padded batch: one text below the other, tokens in columns, and under each the mask that says what is text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from glassformer.page.document import Column, Page, Row, Style, Table, Words
from glassformer.page.format import many, share, visible
from glassformer.views.tokens import TextToken
from glassformer.views.view import View
from glassformer.views.vocabulary import Vocabulary

# Several texts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch(View):
    """Several texts as a model takes them at once: filled up to one length, with a mask that says what is text."""

    SCHEMA = "glassformer.batch/1"

    model: str
    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]  # (texts, longest)
    attention_mask: tuple[tuple[int, ...], ...]  # 1: a token, 0: padding
    token_type_ids: tuple[tuple[int, ...], ...] | None  # which of two texts each is of; None: the model has no use for it
    tokens: tuple[tuple[TextToken, ...], ...]  # of each text, without the padding
    padding_side: Literal["left", "right"]
    pad_token: str | None  # None: all are of one length, and there is no such token
    pad_token_id: int | None
    borrowed: bool  # the tokenizer has no token for padding, so that which ends a text stands in
    python: str  # what gives the same
    vocabulary: Vocabulary

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ids), len(self.ids[0])

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Batch({self.shape[0]} texts, filled up to {self.shape[1]} tokens)"


PLACES = 10  # that are shown of each text
TEXTS = 12  # that are shown
TOGETHER = 8  # places side by side, where all are wanted
PADDING = "·"
Line: TypeAlias = tuple[str, Sequence[str], Style]  # its label, its cells, how it looks


def draw(view: Batch, everything: bool = False) -> Page:
    texts, width = view.shape
    padding = sum(row.count(0) for row in view.attention_mask)
    with_ = "" if view.pad_token is None else f" with {visible(view.pad_token)} (id {view.pad_token_id})"
    filled = f"filled up on the {view.padding_side}{with_}" if padding else "all of one length"
    said = [f"{many(texts, 'text')}, {filled}: ({texts}, {width}), {padding} of {texts * width} places are padding"]
    if padding:
        said[0] += f" ({share(padding / (texts * width))}, shown as {PADDING})"
    if view.borrowed and padding:
        said.append("This tokenizer has no token for padding; the one that ends a text stands in, and the mask hides it.")
    if not everything and (texts > TEXTS or width > PLACES):
        said.append("What is left out in the middle is shown with --all.")
    return Page(
        f"{view.model}: {many(texts, 'text')} as a batch",
        (
            *tables(view, everything),
            Words("\n" + "\n".join(said)),
            Words(f"in Python: {view.python}".replace("\n", "\n           ")),
            Words(f"vocabulary: {view.vocabulary}", "dim"),
        ),
    )


def tables(view: Batch, everything: bool) -> Iterator[Table]:
    """All places in one table, without those in the middle that are too many; or all of them, some in each table."""
    _, width = view.shape
    lines = list(_lines(view, everything))
    if everything and width > TOGETHER:
        for first in range(0, width, TOGETHER):
            shown = list(range(first, min(first + TOGETHER, width)))
            yield _table(lines, shown, [9] * len(shown))
        return
    shown = list(range(width))
    if width > PLACES:
        shown = [*shown[: PLACES // 2], *shown[-PLACES // 2 :]]
    yield _table(lines, shown, [8 - min(at, len(shown) - 1 - at) for at in range(len(shown))], width - len(shown))


def _table(lines: Sequence[Line], shown: Sequence[int], ranks: Sequence[int], more: int = 0) -> Table:
    """Some places; where there is no room, those of the lowest rank go first."""
    columns = [Column(str(at), "token", keep=rank, least=5) for at, rank in zip(shown, ranks, strict=True)]
    rows = [[label, *(cells[at] if cells else "" for at in shown)] for label, cells, _ in lines]
    if more:
        middle = len(shown) // 2
        columns.insert(middle, Column(f"{more:,} more"))
        for row, (_, cells, _) in zip(rows, lines, strict=True):
            row.insert(1 + middle, "…" if cells else "")
    styles = [style for _, _, style in lines]
    return Table((Column("text"), *columns), tuple(Row(tuple(row), one) for row, one in zip(rows, styles, strict=True)))


def _lines(view: Batch, everything: bool) -> Iterator[Line]:
    """Of each text its tokens, its ids and its mask; which of two texts a token is of, where the model asks."""
    texts, _ = view.shape
    numbers = list(range(texts))
    half = TEXTS // 2
    for at in numbers if everything or texts <= TEXTS else [*numbers[:half], None, *numbers[-half:]]:
        if at is None:
            yield f"… {texts - 2 * half:,} more", (), "dim"
            continue
        words = iter(view.tokens[at])
        yield str(at + 1), [visible(next(words).text) if here else PADDING for here in view.attention_mask[at]], ""
        rows = {"ids": view.ids, "mask": view.attention_mask, "types": view.token_type_ids}
        for name, held in rows.items():
            if held is not None:
                yield f"  {name}", [str(number) for number in held[at]], "dim"
