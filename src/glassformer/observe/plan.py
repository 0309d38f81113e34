"""The plan: what a config says of a model, before there are weights, a tokenizer or a prompt."""

from __future__ import annotations

import math
from typing import Any

from glassformer.blueprints import Blueprint, Config, Head
from glassformer.blueprints import blueprint as blueprint_of
from glassformer.ground.arguments import checked
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.observe.stages import BYTES, stages
from glassformer.ops.attend import Attend
from glassformer.views.plan import Plan

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
    """How many numbers the KV cache holds: keys and values of causal blocks, and cross-attention's of a source."""
    own = 1 if blueprint.encoder_blocks and blueprint.head == "seq2seq" else length
    sizes = {"batch": 1, "length": own, "keys": own, "source": length}
    elements = 0
    for op in blueprint.ops_of(Attend):
        if not op.stack and (op.options["causal"] or op.cross):
            for number in op.inputs[1:3]:
                elements += math.prod(sizes[size] if isinstance(size, str) else size for size in blueprint.ops[number].shape)
    return elements
