"""The plan: what a config says about a model before there are weights: shapes, modules, counts and bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_bytes, pluralize
from glassformer.views.journey import Stage, stages_table
from glassformer.views.view import View


@dataclass(frozen=True)
class Plan(View):
    """Every shape, module and count of a model, for a prompt of a given length."""

    SCHEMA = "glassformer.plan/1"

    model: str
    model_type: str
    head: str
    length: int  # tokens of the prompt; of an encoder-decoder: of its source
    blocks: int
    encoder: int  # blocks of the encoder of an encoder-decoder
    stages: tuple[Stage, ...]
    parameters: int
    weights: Mapping[str, int]  # bytes of the weights, by dtype
    cache: Mapping[str, int]  # bytes of the prompt's KV cache, by dtype; 0: there is none

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
    blocks = f"{p.encoder} + {pluralize(p.blocks, 'block')}" if p.encoder else pluralize(p.blocks, "block")
    cached = f"KV cache of {pluralize(p.length, 'token')}"
    if p.encoder:
        cached = f"KV cache of {pluralize(p.length, 'source token')} and 1 target token"
    columns = (Column("memory"), *(Column(kind, "number") for kind in p.weights))
    rows = [TableRow((f"{p.parameters:,} weights", *map(format_bytes, p.weights.values())))]
    if any(p.cache.values()):
        rows.append(TableRow((cached, *map(format_bytes, p.cache.values()))))
    note = "from the config alone: no weights were read" + ("" if any(p.cache.values()) else "; it has no KV cache")
    title = f"{name}: {what}, {blocks}"
    return Page(
        title,
        (
            Heading(title),
            Table(columns, tuple(rows)),
            Heading(f"shapes for {pluralize(p.length, 'token')}{' of the source' if p.encoder else ''}"),
            stages_table(p.stages, modules=True),
            Paragraph(note, "dim"),
        ),
    )
