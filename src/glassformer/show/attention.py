"""Attention as pictures: a map, one token's row, and all heads at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from glassformer.observe.attention import Attention, Habit, Heads, Row, shades
from glassformer.show.page import Column, Gaze, Grid, Heading, Mosaic, Page, Part, Table, Words
from glassformer.show.page import Row as Line
from glassformer.show.words import share, visible

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


def page(found: Attention, everything: bool = False) -> Page:
    """A map; of a long text the first token, where heads rest, and the last ones. All of a long text is a picture."""
    own = found.kind != "cross"
    down = _shown(len(found.queries), everything, first=False)
    across = _shown(len(found.keys), everything, first=own)
    shown = np.ix_(down, across)
    weights, strengths = found.weights[shown], shades(found.weights)[shown]
    unseen = own and not found.weights[np.triu_indices(len(found.queries), 1)].any()
    parts: list[Part] = [
        Heading(f"{found.model}: {found.what()}"),
        Words("each row is a token that looks, each column one it looks at; shades: √(weight ÷ the row's strongest)", "dim"),
    ]
    size = max(len(down), len(across))
    if size <= POINTED:  # more would be millions of words
        values = tuple(
            tuple(None if unseen and key > query else float(strengths[y, x]) for x, key in enumerate(across))
            for y, query in enumerate(down)
        )
        notes = tuple(tuple(share(float(weight)) for weight in row) for row in weights)
        queries, keys = (
            tuple(visible(side[at]) for at in ats) for side, ats in ((found.queries, down), (found.keys, across))
        )
        parts.append(Gaze(queries, keys, values, notes))
    if size <= DRAWN:
        parts.append(Grid(queries, keys, values, notes=notes, first=own, whole=everything))
    else:
        parts.append(Mosaic(("looks",), ("is looked at",), np.round(255 * strengths).astype(np.uint8)[None, None]))
    if len(found.queries) > len(down) or len(found.keys) > len(across):
        away = 1 - float(weights.sum(1).mean())
        said = f"{len(down)} of {len(found.queries)} tokens (--all); of what they look at, {share(away)} is not shown"
        parts.insert(2, Words(said, "dim"))
    parts.append(Words(found.note, "dim"))
    return Page(f"{found.model}: attention, {found.what()}", tuple(parts))


def _shown(count: int, everything: bool, first: bool) -> list[int]:
    """Which tokens of a side: all, or the last ones, and the first if it is to stay."""
    if everything or count <= MOST:
        return list(range(count))
    last = list(range(count - MOST, count))
    return [0, *last[1:]] if first else last


def row(found: Row, everything: bool = False) -> Page:
    """One token's row: the text, and the most looked at first."""
    most = max((one.weight for one in found.glances), default=1.0) or 1.0
    best = found.best if everything else found.best[:BEST]
    table = Table(
        (
            Column("position", "number"),
            Column("token", "token", least=8),
            Column("weight", "number"),
            Column("", "bar", keep=6),
        ),
        tuple(Line((str(one.position), visible(one.text), share(one.weight), one.weight / most)) for one in best),
    )
    said = f"what {visible(found.text)} (position {found.position}) looked at: {found.what}"
    return Page(said, (Heading(f"{found.model}: {said}"), table, Words(found.note, "dim")))


def _ranked(shares: Iterable[tuple[float, Habit]]) -> Table:
    rows = (Line((f"layer {one.layer}", f"head {one.head}", share(value), float(value))) for value, one in shares)
    return Table((Column(), Column(), Column("", "number"), Column("", "bar", keep=6)), tuple(rows))


def heads(found: Heads, everything: bool = False) -> Page:
    """How widely each head looks, layer by layer, and the heads that do one plain thing."""
    most = max((one.entropy for one in found.habits), default=1.0) or 1.0
    by = {(one.layer, one.head): one for one in found.habits}
    values = tuple(tuple(by[layer, head].entropy / most for head in range(found.heads)) for layer in range(found.layers))
    down = tuple(f"layer {layer}" for layer in range(found.layers))
    count = len(found.tokens)
    parts: list[Part] = [
        Heading(f"{found.model}: {found.layers} layers × {found.heads} heads over {count} token{'' if count == 1 else 's'}")
    ]
    if count == 1 and found.kind != "cross":
        return Page(f"{found.model}: all heads", (*parts, Words(ALONE)))
    parts += [
        Words(f"how widely each head looks: blank is at one token, full is {most:.1f} bits", "dim"),
        Grid(down, tuple(str(head) for head in range(found.heads)), values),
    ]
    if found.maps is not None:
        parts.append(Mosaic(down, tuple(f"head {head}" for head in range(found.heads)), found.maps))
    else:
        parts.append(
            Words(f"{count} tokens are too many for a small picture of each head; --layer and --head show one", "dim")
        )
    if found.kind != "cross":
        for name, habit in HABITS.items():
            shares = [(value, one) for one in found.habits if (value := habit(one)) is not None]
            shares.sort(key=lambda two: -two[0])
            if shares:
                parts += [Heading(f"heads that look most at {name}"), _ranked(shares if everything else shares[:FEW])]
        parts.append(Words(_copies(found), "dim"))
    parts.append(Words(found.note, "dim"))
    return Page(f"{found.model}: all heads", tuple(parts))


def _copies(found: Heads) -> str:
    """Over how many tokens the last two habits are means."""
    came, followed = found.again
    if not came:
        return ONCE
    return f"the same token earlier: mean over the {came} tokens that come again; what followed it: over {followed}"
