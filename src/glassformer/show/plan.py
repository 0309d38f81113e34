"""A plan: the shapes of a model, its modules and its weights, and what all of that takes."""

from __future__ import annotations

from glassformer.observe.plan import Plan
from glassformer.show.journey import stages
from glassformer.show.page import Column, Heading, Page, Row, Table, Words
from glassformer.show.words import many, storage


def page(p: Plan, everything: bool = False) -> Page:
    name = p.model or p.model_type
    what = f"{p.model_type}, {p.head} head" if p.head != "base" else f"{p.model_type}, no head"
    blocks = f"{p.encoder} + {many(p.blocks, 'block')}" if p.encoder else many(p.blocks, "block")
    kept = f"keys and values of {many(p.length, 'token')}"
    if p.encoder:
        kept = f"keys and values of {many(p.length, 'source token')} and 1 target token"
    columns = (Column("what takes room"), *(Column(kind, "number") for kind in p.weights))
    rows = [Row((f"{p.parameters:,} weights", *map(storage, p.weights.values())))]
    if any(p.cache.values()):
        rows.append(Row((kept, *map(storage, p.cache.values()))))
    said = "from the config alone: no weights were read" + ("" if any(p.cache.values()) else "; it remembers nothing")
    return Page(
        f"{name}: what its config says",
        (
            Heading(f"{name}: {what}, {blocks}"),
            Table(columns, tuple(rows)),
            Heading(f"shapes for {many(p.length, 'token')}{' of the source' if p.encoder else ''}"),
            stages(p.stages, modules=True),
            Words(said, "dim"),
        ),
    )
