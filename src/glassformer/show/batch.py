"""A padded batch: one text below the other, tokens in columns, and under each the mask that says what is text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from glassformer.observe.tokens import Batch
from glassformer.show.journey import vocabulary
from glassformer.show.page import Column, Page, Row, Style, Table, Words
from glassformer.show.words import many, share, visible

PLACES = 10  # that are shown of each text
TEXTS = 12  # that are shown
TOGETHER = 8  # places side by side, where all are wanted
PADDING = "·"
Line: TypeAlias = tuple[str, Sequence[str], Style]  # its label, its cells, how it looks


def page(found: Batch, everything: bool = False) -> Page:
    texts, width = found.shape
    padding = sum(row.count(0) for row in found.attention_mask)
    with_ = "" if found.pad_token is None else f" with {visible(found.pad_token)} (id {found.pad_token_id})"
    filled = f"filled up on the {found.padding_side}{with_}" if padding else "all of one length"
    said = [f"{many(texts, 'text')}, {filled}: ({texts}, {width}), {padding} of {texts * width} places are padding"]
    if padding:
        said[0] += f" ({share(padding / (texts * width))}, shown as {PADDING})"
    if found.borrowed and padding:
        said.append("This tokenizer has no token for padding; the one that ends a text stands in, and the mask hides it.")
    if not everything and (texts > TEXTS or width > PLACES):
        said.append("What is left out in the middle is shown with --all.")
    return Page(
        f"{found.model}: {many(texts, 'text')} as a batch",
        (
            *tables(found, everything),
            Words("\n" + "\n".join(said)),
            Words(f"in Python: {found.python}".replace("\n", "\n           ")),
            Words(f"vocabulary: {vocabulary(found.vocabulary)}", "dim"),
        ),
    )


def tables(found: Batch, everything: bool) -> Iterator[Table]:
    """All places in one table, without those in the middle that are too many; or all of them, some in each table."""
    _, width = found.shape
    lines = list(_lines(found, everything))
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


def _lines(found: Batch, everything: bool) -> Iterator[Line]:
    """Of each text its tokens, its ids and its mask; which of two texts a token is of, where the model asks."""
    texts, _ = found.shape
    numbers = list(range(texts))
    half = TEXTS // 2
    for at in numbers if everything or texts <= TEXTS else [*numbers[:half], None, *numbers[-half:]]:
        if at is None:
            yield f"… {texts - 2 * half:,} more", (), "dim"
            continue
        words = iter(found.tokens[at])
        yield str(at + 1), [visible(next(words).text) if here else PADDING for here in found.attention_mask[at]], ""
        rows = {"ids": found.ids, "mask": found.attention_mask, "types": found.token_type_ids}
        for name, held in rows.items():
            if held is not None:
                yield f"  {name}", [str(number) for number in held[at]], "dim"
