"""Attention: how much each token took from each other one, in one head, on average, or all the way down.

Rollout follows the ways through all layers: each layer's mean over heads, half of it the stream itself, multiplied up
(Abnar and Zuidema, 2020). These are weights, not reasons: a token can be looked at hard and change nothing. What changes the
answer is view by changing something: see `Model.changed`.

Shapes: weights (queries, keys), each row summing to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.page.document import Column, Gaze, Grid, Heading, Mosaic, Page, Part, Row, Table, Words
from glassformer.page.format import share, visible
from glassformer.views.tokens import find_token
from glassformer.views.view import Floats, View

Kind: TypeAlias = Literal["self", "cross", "encoder"]
NOTE = "Attention is what was looked at, not why: a token can be looked at hard and change nothing. To find out, change it."


@dataclass(frozen=True)
class Glance:
    """One token that was looked at."""

    position: int
    text: str
    weight: float


@dataclass(frozen=True)
class AttentionRow(View):
    """What one token looked at."""

    SCHEMA = "glassformer.attention-row/1"

    model: str
    what: str  # which layer and head
    position: int
    text: str
    glances: tuple[Glance, ...]  # in the order of the text
    note: str = NOTE

    def page(self, everything: bool = False) -> Page:
        return draw_row(self, everything)

    @property
    def best(self) -> list[Glance]:
        """Most looked at first."""
        return sorted(self.glances, key=lambda one: -one.weight)


@dataclass(frozen=True)
class Attention(View):
    """One map."""

    SCHEMA = "glassformer.attention/1"

    model: str
    kind: Kind
    layer: int | None  # None: all of them
    head: int | None  # None: their mean
    rollout: bool
    queries: tuple[str, ...]  # the tokens that look
    keys: tuple[str, ...]  # the tokens that are looked at
    weights: Floats = field(compare=False)
    note: str = NOTE

    def page(self, everything: bool = False) -> Page:
        return draw_map(self, everything)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weights.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self.weights, dtype=dtype, copy=bool(copy))

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
        """What one token looked at: by its position (-1 is the last), or by its text."""
        at = find_token(token, self.queries)
        causal = self.kind == "self" and not self.weights[at, at + 1 :].any()
        seen = zip(self.keys, self.weights[at, : at + 1 if causal else None].tolist(), strict=False)
        glances = tuple(Glance(number, text, weight) for number, (text, weight) in enumerate(seen))
        return AttentionRow(self.model, self.what(), at, self.queries[at], glances, self.note)

    def __repr__(self) -> str:
        return f"Attention({self.what()}: {len(self.queries)} × {len(self.keys)})"


@dataclass(frozen=True)
class Habit:
    """What a head does, over all tokens but the first, which can look at nothing else: shares of its weight, and how widely
    it looks."""

    layer: int
    head: int
    entropy: float  # in bits, mean over the tokens that look
    first: float | None  # the share that goes to the first token; None here and below: no token could
    previous: float | None
    itself: float | None
    duplicate: float | None  # to the same token earlier, mean over those that have come before
    induction: float | None  # to what followed the same token earlier


@dataclass(frozen=True)
class Heads(View):
    """All heads of all layers, each in a few numbers."""

    SCHEMA = "glassformer.heads/1"

    model: str
    kind: Kind
    tokens: tuple[str, ...]
    layers: int
    heads: int
    habits: tuple[Habit, ...]
    again: tuple[int, int] = (0, 0)  # tokens that have come before, and those of them after which another came
    note: str = NOTE
    maps: npt.NDArray[np.uint8] | None = field(default=None, repr=False, compare=False, metadata={"stored": False})

    def page(self, everything: bool = False) -> Page:
        return draw_heads(self, everything)

    def __repr__(self) -> str:
        return f"Heads({self.layers} layers × {self.heads} heads)"


def shades(weights: Floats) -> Floats:
    """How strong a map's cells are drawn, from 0 to 1: as the square root of the weight, relative to a row's strongest.

    Many heads rest on the first token; in proportion, nothing else could be seen beside it.
    """
    view: Floats = np.sqrt(weights / np.maximum(weights.max(-1, keepdims=True), 1e-9))
    return view


MOST = 48  # tokens each way
DRAWN = 96  # tokens of a map beyond which it is a picture
POINTED = 256  # tokens of a text that can be pointed at
ALONE = "one token can look at itself only, so there is nothing to tell heads apart by"
ONCE = "no token comes twice, so there are no copies to look at (a word with a space before it is another token)"
BEST = 12  # tokens of a row
FEW = 8  # heads of each habit
HABITS: dict[str, Callable[[Habit], float | None]] = {
    "the first token": lambda one: one.first,
    "the token before": lambda one: one.previous,
    "the token itself": lambda one: one.itself,
    "the same token earlier": lambda one: one.duplicate,
    "what followed the same token earlier (induction)": lambda one: one.induction,
}


def draw_map(view: Attention, everything: bool = False) -> Page:
    """A map; of a long text the first token, where heads rest, and the last ones. All of a long text is a picture."""
    own = view.kind != "cross"
    down = _shown(len(view.queries), everything, first=False)
    across = _shown(len(view.keys), everything, first=own)
    shown = np.ix_(down, across)
    weights, strengths = view.weights[shown], shades(view.weights)[shown]
    unseen = own and not view.weights[np.triu_indices(len(view.queries), 1)].any()
    parts: list[Part] = [
        Heading(f"{view.model}: {view.what()}"),
        Words("each row is a token that looks, each column one it looks at; shades: √(weight ÷ the row's strongest)", "dim"),
    ]
    size = max(len(down), len(across))
    if size <= POINTED:  # more would be millions of words
        values = tuple(
            tuple(None if unseen and key > query else float(strengths[y, x]) for x, key in enumerate(across))
            for y, query in enumerate(down)
        )
        notes = tuple(tuple(share(float(weight)) for weight in row) for row in weights)
        queries, keys = (tuple(visible(side[at]) for at in ats) for side, ats in ((view.queries, down), (view.keys, across)))
        parts.append(Gaze(queries, keys, values, notes))
    if size <= DRAWN:
        parts.append(Grid(queries, keys, values, notes=notes, first=own, whole=everything))
    else:
        parts.append(Mosaic(("looks",), ("is looked at",), np.round(255 * strengths).astype(np.uint8)[None, None]))
    if len(view.queries) > len(down) or len(view.keys) > len(across):
        away = 1 - float(weights.sum(1).mean())
        said = f"{len(down)} of {len(view.queries)} tokens (--all); of what they look at, {share(away)} is not shown"
        parts.insert(2, Words(said, "dim"))
    parts.append(Words(view.note, "dim"))
    return Page(f"{view.model}: attention, {view.what()}", tuple(parts))


def _shown(count: int, everything: bool, first: bool) -> list[int]:
    """Which tokens of a side: all, or the last ones, and the first if it is to stay."""
    if everything or count <= MOST:
        return list(range(count))
    last = list(range(count - MOST, count))
    return [0, *last[1:]] if first else last


def draw_row(view: AttentionRow, everything: bool = False) -> Page:
    """One token's row: the text, and the most looked at first."""
    most = max((one.weight for one in view.glances), default=1.0) or 1.0
    best = view.best if everything else view.best[:BEST]
    table = Table(
        (
            Column("position", "number"),
            Column("token", "token", least=8),
            Column("weight", "number"),
            Column("", "bar", keep=6),
        ),
        tuple(Row((str(one.position), visible(one.text), share(one.weight), one.weight / most)) for one in best),
    )
    said = f"what {visible(view.text)} (position {view.position}) looked at: {view.what}"
    return Page(said, (Heading(f"{view.model}: {said}"), table, Words(view.note, "dim")))


def _ranked(shares: Iterable[tuple[float, Habit]]) -> Table:
    rows = (Row((f"layer {one.layer}", f"head {one.head}", share(value), float(value))) for value, one in shares)
    return Table((Column(), Column(), Column("", "number"), Column("", "bar", keep=6)), tuple(rows))


def draw_heads(view: Heads, everything: bool = False) -> Page:
    """How widely each head looks, layer by layer, and the heads that do one plain thing."""
    most = max((one.entropy for one in view.habits), default=1.0) or 1.0
    by = {(one.layer, one.head): one for one in view.habits}
    values = tuple(tuple(by[layer, head].entropy / most for head in range(view.heads)) for layer in range(view.layers))
    down = tuple(f"layer {layer}" for layer in range(view.layers))
    count = len(view.tokens)
    parts: list[Part] = [
        Heading(f"{view.model}: {view.layers} layers × {view.heads} heads over {count} token{'' if count == 1 else 's'}")
    ]
    if count == 1 and view.kind != "cross":
        return Page(f"{view.model}: all heads", (*parts, Words(ALONE)))
    parts += [
        Words(f"how widely each head looks: blank is at one token, full is {most:.1f} bits", "dim"),
        Grid(down, tuple(str(head) for head in range(view.heads)), values),
    ]
    if view.maps is not None:
        parts.append(Mosaic(down, tuple(f"head {head}" for head in range(view.heads)), view.maps))
    else:
        parts.append(
            Words(f"{count} tokens are too many for a small picture of each head; --layer and --head show one", "dim")
        )
    if view.kind != "cross":
        for name, habit in HABITS.items():
            shares = [(value, one) for one in view.habits if (value := habit(one)) is not None]
            shares.sort(key=lambda two: -two[0])
            if shares:
                parts += [Heading(f"heads that look most at {name}"), _ranked(shares if everything else shares[:FEW])]
        parts.append(Words(_copies(view), "dim"))
    parts.append(Words(view.note, "dim"))
    return Page(f"{view.model}: all heads", tuple(parts))


def _copies(view: Heads) -> str:
    """Over how many tokens the last two habits are means."""
    came, followed = view.again
    if not came:
        return ONCE
    return f"the same token earlier: mean over the {came} tokens that come again; what followed it: over {followed}"
