"""With the cache and without, as a table and in a sentence."""

from __future__ import annotations

from glassformer.observe.caching import Caching
from glassformer.show.page import Column, Heading, Page, Part, Row, Table, Words, middle
from glassformer.show.words import many, seconds, storage, visible

MOST = 32


def page(found: Caching, everything: bool = False) -> Page:
    most = max((max(step.cached, step.uncached) for step in found.steps), default=1.0) or 1.0
    rows = [
        Row(
            (
                str(step.length),
                visible(step.text) if step.text else "…",
                seconds(step.cached),
                step.cached / most,
                seconds(step.uncached),
                step.uncached / most,
            )
        )
        for step in found.steps
    ]
    columns = (
        Column("before it", "number"), Column("token", "token", least=8), Column("with cache", "number"),
        Column("", "bar", keep=6), Column("without", "number"), Column("", "bar", keep=6),
    )  # fmt: skip
    with_, without = found.seconds
    verdict = "the same tokens both ways" if found.same else "the two ways gave different tokens: rounding differs"
    parts: list[Part] = [
        Heading(f"{found.model}: {many(len(found.steps), 'token')} with the cache, and without"),
        Table(columns, tuple(rows) if everything else middle(rows, MOST)),
        Words(f"\n{verdict}", "chosen" if found.same else "strong"),
        Words(
            f"with: {seconds(with_)}, {found.fed[0]:,} tokens through the model, {storage(found.bytes)} kept\n"
            f"without: {seconds(without)}, {found.fed[1]:,} tokens through the model, nothing kept"
            + (f"\n{without / with_:.1f} times as long without" if with_ > 0 else "")
        ),
    ]
    return Page(f"{found.model}: what the cache is for", tuple(parts))
