"""The families that stand for every mechanism have each that any family has: its kinds of ops, options and connections."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import pytest

from glassformer.blueprints import blueprint, read_config
from glassformer.ops.rope import Rope
from tests.parity import reference
from tests.parity.configs.mechanisms import EACH_MECHANISM

SIZES = ("size", "first", "step", "module", "stored")  # options that differ with a model's width and names


def kind_of(value: Any) -> Hashable:
    """Of a number only whether it is none, nothing or one."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value if value in (0, 1) else "number"
    if isinstance(value, Rope):
        return value.kind, value.interleaved, value.partial_rotary_factor == 1
    return type(value).__name__


def mechanisms(family: str) -> Iterator[Hashable]:
    """Each kind of op with what it reads, with how many weights and whether one is a bias, and with each of its options."""
    ops = blueprint(read_config(reference.config(family).to_dict()), reference.HEADS[family][1]).ops
    for op in ops:
        kind = type(op).__name__
        yield kind, "of", tuple(type(ops[source]).__name__ for source in op.inputs)
        yield kind, "with", len(op.weights), any(weight.name.endswith("bias") for weight in op.weights)
        yield from ((kind, name, kind_of(value)) for name, value in op.options.items() if name not in SIZES)


@pytest.mark.parametrize("kind", ["DECODERS", "PAIRS", "ENCODERS"])
def test_a_few_families_have_every_mechanism(kind: str) -> None:
    there: set[str] = set(getattr(reference, kind))
    found = {mechanism for family in there.intersection(EACH_MECHANISM) for mechanism in mechanisms(family)}
    missing = {family: {*mechanisms(family)} - found for family in there.difference(EACH_MECHANISM)}
    assert not {family: lacks for family, lacks in missing.items() if lacks}  # add one of them to EACH_MECHANISM


def test_the_few_are_families() -> None:
    assert {*EACH_MECHANISM} < {*reference.FAMILIES}
    assert len(EACH_MECHANISM) < len(reference.FAMILIES) / 2
