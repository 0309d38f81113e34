"""The plan: what a config says of a model, before there are weights, a tokenizer or a prompt."""

from __future__ import annotations

import math
from typing import Any

from glassformer.blueprints import Blueprint, Config, Head
from glassformer.blueprints import blueprint as blueprint_of
from glassformer.errors import InputError, InputTypeError
from glassformer.observe.stages import BYTES, stages
from glassformer.views.plan import Plan

LENGTH = 16  # tokens, where nobody says how many
KINDS = ("float32", "bfloat16")


def plan(source: Any, length: int = LENGTH, *, head: Head | None = None, name: str = "") -> Plan:
    """The plan of a config, of a blueprint, or of whatever has one: an opened checkpoint, a loaded model, a PyTorch one.

    Args:
        length: tokens of the prompt; of an encoder-decoder, of its source.
        head: for a config, another head than the family was made for, such as 'sequence'.
    """
    if length < 1:
        raise InputError(f"a prompt of {length} tokens has no shape. Give at least one.")
    made = source if isinstance(source, Blueprint) else getattr(source, "blueprint", None)
    if isinstance(source, Config):
        made = blueprint_of(source, head)
    elif made is None and isinstance(config := getattr(source, "config", None), Config):  # a PyTorch model of ours
        made = blueprint_of(config, getattr(source, "head", "base"))
    made = made() if callable(made) else made
    if not isinstance(made, Blueprint):
        raise InputTypeError(f"a plan is of a config, a blueprint or a model, not of {type(source).__name__}.")
    name = name or getattr(source, "name", "")
    remembered = _remembered(made, length)
    found = [stage for stage in stages(made, length, plain=False) if stage.name != "sites"]
    return Plan(
        name,
        made.model_type,
        made.head,
        length,
        made.blocks,
        made.encoder,
        tuple(found),
        made.parameters,
        {kind: made.parameters * BYTES[kind] for kind in KINDS},
        {kind: remembered * BYTES[kind] for kind in KINDS},
    )


def _remembered(made: Blueprint, length: int) -> int:
    """How many numbers are kept: keys and values of each block that sees only what came before, and those of a source."""
    own = 1 if made.encoder and made.head == "seq2seq" else length
    sizes = {"batch": 1, "length": own, "keys": own, "source": length}
    kept = 0
    for op in made.ops:
        if op.kind == "attend" and not op.stack and (op.options["causal"] or op.options["memory"]):
            for number in op.reads[1:3]:
                kept += math.prod(sizes[size] if isinstance(size, str) else size for size in made.ops[number].shape)
    return kept
