"""A padded batch: texts below each other, tokens in columns, and under each the mask that says what is text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from glassformer.ground.arguments import checked
from glassformer.page.document import Column, Page, Paragraph, Style, Table, TableRow
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.views.tokens import TextToken
from glassformer.views.view import View, flat_data
from glassformer.views.vocabulary import VocabularySizes

MAX_POSITIONS = 10  # of each text, unless everything is shown
MAX_TEXTS = 12
BAND = 8  # positions of one table where everything is shown
PADDING = "·"
BatchLine: TypeAlias = tuple[str, Sequence[str], Style]  # label, cells, style


@dataclass(frozen=True)
class Batch(View):
    """Several texts as a model takes them at once: padded to one length, with a mask that says what is text."""

    SCHEMA = "glassformer.batch/1"

    model: str
    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]  # (texts, longest)
    attention_mask: tuple[tuple[int, ...], ...]  # 1: a token, 0: padding
    token_type_ids: tuple[tuple[int, ...], ...] | None  # which of two texts each token is of; None: not used by the model
    tokens: tuple[tuple[TextToken, ...], ...]  # without the padding
    padding_side: Literal["left", "right"]
    pad_token: str | None  # None: none is needed, and the tokenizer has none
    pad_token_id: int | None
    borrowed: bool  # the tokenizer has no padding token, so its end-of-text token stands in
    python: str  # the call that gives the same
    vocabulary: VocabularySizes

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ids), len(self.ids[0])

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each token of each text."""
        return [{"row": number, **flat_data(token)} for number, tokens in enumerate(self.tokens) for token in tokens]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Batch({self.shape[0]} texts, padded to {self.shape[1]} tokens)"


def draw(view: Batch, everything: bool = False) -> Page:
    texts, width = view.shape
    padding = sum(row.count(0) for row in view.attention_mask)
    pad_token = "" if view.pad_token is None else f" with {visible(view.pad_token)} (id {view.pad_token_id})"
    padded = f"padded on the {view.padding_side}{pad_token}" if padding else "all of one length"
    summary = [f"{pluralize(texts, 'text')}, {padded}: ({texts}, {width}), {padding} of {texts * width} places are padding"]
    if padding:
        summary[0] += f" ({format_percent(padding / (texts * width))}, shown as {PADDING})"
    if view.borrowed and padding:
        summary.append("This tokenizer has no padding token; its end-of-text token stands in, and the mask hides it.")
    if not everything and (texts > MAX_TEXTS or width > MAX_POSITIONS):
        summary.append("--all shows what is left out in the middle.")
    return Page(
        f"{view.model}: {pluralize(texts, 'text')} as a batch",
        (
            *tables(view, everything),
            Paragraph("\n" + "\n".join(summary)),
            Paragraph(f"in Python: {view.python}".replace("\n", "\n           ")),
            Paragraph(f"vocabulary: {view.vocabulary}", "dim"),
        ),
    )


def tables(view: Batch, everything: bool) -> Iterator[Table]:
    """One table without the middle of long texts; or, where everything is shown, several below each other."""
    _, width = view.shape
    lines = list(_lines(view, everything))
    if everything and width > BAND:
        for first in range(0, width, BAND):
            shown = list(range(first, min(first + BAND, width)))
            yield _table(lines, shown, [9] * len(shown))
        return
    shown = list(range(width))
    if width > MAX_POSITIONS:
        shown = [*shown[: MAX_POSITIONS // 2], *shown[-MAX_POSITIONS // 2 :]]
    yield _table(lines, shown, [8 - min(at, len(shown) - 1 - at) for at in range(len(shown))], width - len(shown))


def _table(lines: Sequence[BatchLine], shown: Sequence[int], priorities: Sequence[int], more: int = 0) -> Table:
    """Some positions, and in the middle how many more there are."""
    columns = [Column(str(at), "token", priority=value, min_width=5) for at, value in zip(shown, priorities, strict=True)]
    rows = [[label, *(cells[at] if cells else "" for at in shown)] for label, cells, _ in lines]
    if more:
        middle = len(shown) // 2
        columns.insert(middle, Column(f"{more:,} more"))
        for row, (_, cells, _) in zip(rows, lines, strict=True):
            row.insert(1 + middle, "…" if cells else "")
    styled = zip(rows, (style for _, _, style in lines), strict=True)
    return Table((Column("text"), *columns), tuple(TableRow(tuple(row), style) for row, style in styled))


def _lines(view: Batch, everything: bool) -> Iterator[BatchLine]:
    """Of each text its tokens, ids and mask; and token types, where the model takes them."""
    texts, _ = view.shape
    numbers = list(range(texts))
    half = MAX_TEXTS // 2
    for at in numbers if everything or texts <= MAX_TEXTS else [*numbers[:half], None, *numbers[-half:]]:
        if at is None:
            yield f"… {texts - 2 * half:,} more", (), "dim"
            continue
        tokens = iter(view.tokens[at])
        yield str(at + 1), [visible(next(tokens).text) if is_token else PADDING for is_token in view.attention_mask[at]], ""
        inputs = {"ids": view.ids, "mask": view.attention_mask, "types": view.token_type_ids}
        for name, rows in inputs.items():
            if rows is not None:
                yield f"  {name}", [str(number) for number in rows[at]], "dim"
