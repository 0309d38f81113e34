"""The plan: what a config says about a model before there are weights: shapes, modules, counts and bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import Blueprint, Config, Head
from glassformer.blueprints import blueprint as blueprint_of
from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ops.attend import Attend
from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import format_bytes, pluralize
from glassformer.see.journey.stages import BYTES, axis_sizes, stages
from glassformer.see.journey.view import Stage, stages_table
from glassformer.see.view import View


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
        name = self.model or self.model_type
        what = f"{self.model_type}, {self.head} head" if self.head != "base" else f"{self.model_type}, no head"
        blocks = f"{self.encoder} + {pluralize(self.blocks, 'block')}" if self.encoder else pluralize(self.blocks, "block")
        cached = f"KV cache of {pluralize(self.length, 'token')}"
        if self.encoder:
            cached = f"KV cache of {pluralize(self.length, 'source token')} and 1 target token"
        columns = (Column("memory"), *(Column(kind, "number") for kind in self.weights))
        rows = [TableRow((f"{self.parameters:,} weights", *map(format_bytes, self.weights.values())))]
        if any(self.cache.values()):
            rows.append(TableRow((cached, *map(format_bytes, self.cache.values()))))
        note = "from the config alone: no weights were read" + ("" if any(self.cache.values()) else "; it has no KV cache")
        title = f"{name}: {what}, {blocks}"
        return Page.titled(
            title,
            Table(columns, tuple(rows)),
            Heading(f"shapes for {pluralize(self.length, 'token')}{' of the source' if self.encoder else ''}"),
            stages_table(self.stages, modules=True),
            Paragraph(note, "dim"),
        )

    def __repr__(self) -> str:
        return f"Plan({self.model or self.model_type}: {self.parameters:,} parameters)"


LENGTH = 16  # tokens, by default
DTYPES = ("float32", "bfloat16")


@checked
def plan(source: Any, length: int = LENGTH, *, head: Head | None = None, name: str = "") -> Plan:
    """The plan of a config, of a blueprint, or of whatever has one: an opened checkpoint, a loaded model, a PyTorch one.

    Args:
        length: tokens of the prompt; of an encoder-decoder, of its source.
        head: for a config, another head than the family was made for, such as 'sequence'.
    """
    if length < 1:
        raise InputError(f"a prompt of {length} tokens has no shape. Give at least one.")
    blueprint = source if isinstance(source, Blueprint) else getattr(source, "blueprint", None)
    if isinstance(source, Config):
        blueprint = blueprint_of(source, head)
    elif blueprint is None and isinstance(config := getattr(source, "config", None), Config):  # a PyTorch model of ours
        blueprint = blueprint_of(config, getattr(source, "head_kind", "base"))
    blueprint = blueprint() if callable(blueprint) else blueprint
    if not isinstance(blueprint, Blueprint):
        raise InputTypeError(f"a plan is of a config, a blueprint or a model, not of {type(source).__name__}.")
    name = name or getattr(source, "name", "")
    cached = _cache_elements(blueprint, length)
    return Plan(
        name,
        blueprint.model_type,
        blueprint.head,
        length,
        blueprint.blocks,
        blueprint.encoder_blocks,
        tuple(stage for stage in stages(blueprint, length, plain=False) if stage.name != "sites"),
        blueprint.parameters,
        {dtype: blueprint.parameters * BYTES[dtype] for dtype in DTYPES},
        {dtype: cached * BYTES[dtype] for dtype in DTYPES},
    )


def _cache_elements(blueprint: Blueprint, length: int) -> int:
    """How many numbers a row holds: keys and values of causal blocks, cross-attention's of a source, and states."""
    sizes, elements = axis_sizes(blueprint, length), 0
    for op in blueprint.ops_of(Attend):
        if not op.stack and (op.options["causal"] or op.cross):
            for index in op.inputs[1:3]:
                elements += math.prod(sizes[size] if isinstance(size, str) else size for size in blueprint.ops[index].shape)
    return elements + blueprint.state_size
