"""The plan: what a config says of a model before there are weights: shapes, modules, counts, and what they take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Row, Table, Words
from glassformer.page.format import many, storage
from glassformer.views.journey import Stage, stages_table
from glassformer.views.view import View


@dataclass(frozen=True)
class Plan(View):
    """Every shape, module and count of a model, for a prompt of so many tokens."""

    SCHEMA = "glassformer.plan/1"

    model: str
    model_type: str
    head: str
    length: int  # tokens of the prompt; of an encoder-decoder: of its source
    blocks: int
    encoder: int  # blocks of the encoder of an encoder-decoder
    stages: tuple[Stage, ...]
    parameters: int
    weights: Mapping[str, int]  # bytes of the weights, by what they are stored in
    cache: Mapping[str, int]  # bytes that are remembered of the prompt, by what they are kept in; 0: nothing is

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stage, by its name; equal blocks under the first one's names."""
        return {stage.name: stage.shape for stage in self.stages}

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Plan({self.model or self.model_type}: {self.parameters:,} parameters)"


def draw(p: Plan, everything: bool = False) -> Page:
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
            stages_table(p.stages, modules=True),
            Words(said, "dim"),
        ),
    )
