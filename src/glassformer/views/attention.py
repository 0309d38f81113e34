"""Attention: how much each token took from each other one, in one head, as a mean over heads, or through all layers.

Rollout follows the paths through all layers: the product of each layer's mean over heads, averaged with the identity for
the residual stream (Abnar and Zuidema, 2020). These are weights, not reasons: a token can get much attention and change
nothing. What changes the answer is found by changing something: see `Model.changed`.

In some families a head has a sink (gpt-oss): a learned score beside those of the keys, which takes its part of each row's
attention and gives nothing for it. It is a column of its own here, so that each row sums to one.

Shapes: weights (queries, keys), sink (queries); the two of a row sum to one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked
from glassformer.page.document import (
    Column,
    Grid,
    Heading,
    HoverMap,
    Page,
    PagePart,
    Paragraph,
    Table,
    TableRow,
    ThumbnailGrid,
)
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.views.tokens import find_token
from glassformer.views.view import ArrayView, Floats, View

AttentionKind: TypeAlias = Literal["self", "cross", "encoder"]
MAX_TOKENS = 48  # rows and columns of a map, unless everything is shown
MAX_GRID_TOKENS = 96  # above, a map is drawn as an image
MAX_HOVER_TOKENS = 256  # above, a text cannot be hovered over
MAX_ROW_TOKENS = 12  # tokens listed for one row of a map
MAX_PATTERN_HEADS = 8  # heads listed for each pattern
PATTERNS = {  # a field of HeadSummary, by what the head attends to
    "the first token": "first",
    "the token before": "previous",
    "the token itself": "itself",
    "the same token earlier": "duplicate",
    "what followed the same token earlier (induction)": "induction",
    "the sink, and so to no token": "sink",
}
SINK = "(sink)"  # as its column is called
SINGLE_TOKEN = "a single token can attend to itself only, so all heads do the same"
NO_REPEATS = "no token comes twice, so there are no copies to attend to (a word with a space before it is another token)"
NOTE = "Attention shows where, not why: a token can get much attention and change nothing. To find out, change it."


@dataclass(frozen=True)
class AttendedToken:
    """One token that was attended to, and how much."""

    position: int
    text: str
    weight: float


@dataclass(frozen=True)
class AttentionRow(View):
    """What one token attended to."""

    SCHEMA = "glassformer.attention-row/2"

    model: str
    what: str  # which layer and head
    position: int
    text: str
    attended: tuple[AttendedToken, ...]  # in the order of the text
    note: str = NOTE
    sink: float | None = None  # what the sink took; None: there is none

    def page(self, everything: bool = False) -> Page:
        return draw_row(self, everything)

    @property
    def best(self) -> list[AttendedToken]:
        """Most attended to first."""
        return sorted(self.attended, key=lambda token: -token.weight)


@dataclass(frozen=True)
class AttentionMap(ArrayView):
    """The attention weights of a text's tokens over each other."""

    SCHEMA = "glassformer.attention/1"

    model: str
    kind: AttentionKind
    layer: int | None  # None: all of them
    head: int | None  # None: their mean
    rollout: bool
    queries: tuple[str, ...]  # the tokens that attend
    keys: tuple[str, ...]  # the tokens that are attended to
    weights: Floats = field(compare=False)
    note: str = NOTE
    sink: Floats | None = field(default=None, compare=False)  # what of each row the sink took; None: there is none

    def page(self, everything: bool = False) -> Page:
        return draw_map(self, everything)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights.shape

    def numbers(self) -> Floats:
        return self.weights

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each token that attends, and each that it attends to."""
        return [
            {"query": query, "query_token": self.queries[query], "key": key, "key_token": text, "weight": weight}
            for query, row in enumerate(self.weights.tolist())
            for key, (text, weight) in enumerate(zip(self.keys, row, strict=True))
        ]

    def __getitem__(self, index: Any) -> Any:
        return self.weights[index]

    def what(self) -> str:
        """Which map it is, in words."""
        kind = {"self": "", "cross": "cross-attention, ", "encoder": "the encoder's "}[self.kind]
        if self.rollout:
            return f"{kind}all layers, rolled out"
        if self.layer is None:
            return f"{kind}mean of all layers and heads"
        return f"{kind}layer {self.layer}, {'mean of its heads' if self.head is None else f'head {self.head}'}"

    def of(self, token: int | str) -> AttentionRow:
        """What one token attended to: by its position (-1 is the last), or by its text."""
        at = find_token(token, self.queries)
        causal = self.kind == "self" and not self.weights[at, at + 1 :].any()
        weights = zip(self.keys, self.weights[at, : at + 1 if causal else None].tolist(), strict=False)
        attended = tuple(AttendedToken(position, text, weight) for position, (text, weight) in enumerate(weights))
        sink = None if self.sink is None else float(self.sink[at])
        return AttentionRow(self.model, self.what(), at, self.queries[at], attended, self.note, sink)

    def __repr__(self) -> str:
        return f"AttentionMap({self.what()}: {len(self.queries)} × {len(self.keys)})"


@dataclass(frozen=True)
class HeadSummary:
    """What a head does: where its weight goes, and how spread out it is; over all tokens but the first, which can attend to
    itself only."""

    layer: int
    head: int
    entropy: float  # in bits, mean over the tokens that look; a sink counts as one more place to look at
    first: float | None  # the fraction that goes to the first token; None here and below: no token could
    previous: float | None
    itself: float | None
    duplicate: float | None  # to the same token earlier, mean over the tokens that are repeated
    induction: float | None  # to what followed the same token earlier
    sink: float | None = None  # to the sink; None: there is none


@dataclass(frozen=True)
class Heads(View):
    """All heads of all layers, each in a few numbers."""

    SCHEMA = "glassformer.heads/2"

    model: str
    kind: AttentionKind
    tokens: tuple[str, ...]
    layers: int
    heads: int
    summaries: tuple[HeadSummary, ...]
    repeated: tuple[int, int] = (0, 0)  # repeated tokens, and those of them whose earlier copy has a successor
    note: str = NOTE
    maps: npt.NDArray[np.uint8] | None = field(default=None, repr=False, compare=False, metadata={"stored": False})

    def page(self, everything: bool = False) -> Page:
        return draw_heads(self, everything)

    def __repr__(self) -> str:
        return f"Heads({self.layers} layers × {self.heads} heads)"


def with_sink(weights: Floats, sink: Floats | None) -> Floats:
    """The weights (…, queries, keys) with what the sink took as the last column, where there is one."""
    return weights if sink is None else np.concatenate((weights, sink[..., None]), -1)


def shades(weights: Floats) -> Floats:
    """How dark a map's cells are drawn, from 0 to 1: as the square root of the weight, relative to a row's strongest.

    Many heads rest on the first token; in proportion, nothing else could be seen next to it.
    """
    strengths: Floats = np.sqrt(weights / np.maximum(weights.max(-1, keepdims=True), 1e-9))
    return strengths


def draw_map(view: AttentionMap, everything: bool = False) -> Page:
    """A map; of a long text the first token, where heads rest, and the last ones. All of a long text is an image."""
    same_text = view.kind != "cross"
    rows = _shown_tokens(len(view.queries), everything, keep_first=False)
    columns = _shown_tokens(len(view.keys), everything, keep_first=same_text)
    every, names = with_sink(view.weights, view.sink), view.keys
    if view.sink is not None:
        columns, names = [*columns, len(names)], (*names, SINK)
    shown = np.ix_(rows, columns)
    weights, strengths = every[shown], shades(every)[shown]
    causal = same_text and not view.weights[np.triu_indices(len(view.queries), 1)].any()
    parts: list[PagePart] = [
        Heading(title := f"{view.model}: attention, {view.what()}"),
        Paragraph("each row is a token, each column one that it attends to; shades: √(weight ÷ the row's strongest)", "dim"),
    ]
    size = max(len(rows), len(columns))
    if size <= MAX_HOVER_TOKENS:  # more would be megabytes of HTML
        values = tuple(
            tuple(
                None if causal and query < key < len(view.keys) else float(strengths[y, x]) for x, key in enumerate(columns)
            )
            for y, query in enumerate(rows)
        )
        notes = tuple(tuple(format_percent(float(weight)) for weight in row) for row in weights)
        queries, keys = tuple(visible(view.queries[at]) for at in rows), tuple(visible(names[at]) for at in columns)
        parts.append(HoverMap(queries, keys, values, notes))
    if size <= MAX_GRID_TOKENS:
        parts.append(Grid(queries, keys, values, notes=notes, keep_first=same_text, all_columns=everything))
    else:
        parts.append(
            ThumbnailGrid(("attends",), ("is attended to",), np.round(255 * strengths).astype(np.uint8)[None, None])
        )
    if view.sink is not None:
        parts.insert(2, Paragraph(f"{SINK}, the last column: what a learned score that stands for no token took", "dim"))
    if len(view.queries) > len(rows) or len(names) > len(columns):
        hidden = format_percent(1 - float(weights.sum(1).mean()))
        parts.insert(
            2, Paragraph(f"{len(rows)} of {len(view.queries)} tokens (--all); {hidden} of their weight is not shown", "dim")
        )
    parts.append(Paragraph(view.note, "dim"))
    return Page(title, tuple(parts))


def _shown_tokens(count: int, everything: bool, keep_first: bool) -> list[int]:
    """The positions that are shown: all, or the last ones, and the first if it is kept."""
    if everything or count <= MAX_TOKENS:
        return list(range(count))
    last = list(range(count - MAX_TOKENS, count))
    return [0, *last[1:]] if keep_first else last


def draw_row(view: AttentionRow, everything: bool = False) -> Page:
    """What one token attended to, the most first."""
    best = view.best if everything else view.best[:MAX_ROW_TOKENS]
    rows = [
        TableRow((str(token.position), visible(token.text), format_percent(token.weight), token.weight)) for token in best
    ]
    if view.sink is not None:
        rows.append(TableRow(("", SINK, format_percent(view.sink), view.sink), "dim"))
    table = Table(
        (
            Column("position", "number"),
            Column("token", "token", min_width=8),
            Column("weight", "number"),
            Column("", "bar", priority=6),
        ),
        tuple(rows),
    )
    title = f"{view.model}: what {visible(view.text)} (position {view.position}) attended to: {view.what}"
    return Page(title, (Heading(title), table, Paragraph(view.note, "dim")))


def draw_heads(view: Heads, everything: bool = False) -> Page:
    """The entropy of each head, layer by layer, and the heads that have one plain pattern."""
    most = max((summary.entropy for summary in view.summaries), default=1.0) or 1.0
    entropies = {(summary.layer, summary.head): summary.entropy / most for summary in view.summaries}
    values = tuple(tuple(entropies[layer, head] for head in range(view.heads)) for layer in range(view.layers))
    layers = tuple(f"layer {layer}" for layer in range(view.layers))
    tokens = pluralize(len(view.tokens), "token")
    title = f"{view.model}: {view.layers} layers × {view.heads} heads over {tokens}"
    parts: list[PagePart] = [Heading(title)]
    if len(view.tokens) == 1 and view.kind != "cross":
        return Page(title, (*parts, Paragraph(SINGLE_TOKEN)))
    parts += [
        Paragraph(
            f"entropy of each head's weights: blank attends to one token, full is {most:.1f} bits{_sink_note(view)}", "dim"
        ),
        Grid(layers, tuple(str(head) for head in range(view.heads)), values),
    ]
    if view.maps is not None:
        parts.append(ThumbnailGrid(layers, tuple(f"head {head}" for head in range(view.heads)), view.maps))
    else:
        parts.append(Paragraph(f"{tokens} are too many for a thumbnail of each head; --layer and --head show one", "dim"))
    if view.kind != "cross":
        for target, field_name in PATTERNS.items():
            heads = [(weight, summary) for summary in view.summaries if (weight := getattr(summary, field_name)) is not None]
            heads.sort(key=lambda pair: -pair[0])
            if heads:
                ranking = _heads_table(heads if everything else heads[:MAX_PATTERN_HEADS])
                parts += [Heading(f"heads that attend most to {target}"), ranking]
        parts.append(Paragraph(_repeats_text(view), "dim"))
    parts.append(Paragraph(view.note, "dim"))
    return Page(title, tuple(parts))


def _sink_note(view: Heads) -> str:
    if all(summary.sink is None for summary in view.summaries):
        return ""
    return "; the sink, the last column of each head's map, counts as one more token"


def _heads_table(heads: Iterable[tuple[float, HeadSummary]]) -> Table:
    rows = (
        TableRow((f"layer {summary.layer}", f"head {summary.head}", format_percent(weight), float(weight)))
        for weight, summary in heads
    )
    return Table((Column(), Column(), Column("", "number"), Column("", "bar", priority=6)), tuple(rows))


def _repeats_text(view: Heads) -> str:
    """Over how many tokens the last two are means."""
    repeated, followed = view.repeated
    if not repeated:
        return NO_REPEATS
    return f"the same token earlier: mean over {repeated} repeated tokens; what followed it: over {followed}"
