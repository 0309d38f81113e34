"""A module made of others: it calls its parts in order, as the blueprint says.

A container has one input and one result. In between it has numbered slots for values; a step reads some and writes one. What
is seen at sites is in steps of its own, which only a watched pass has.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

from torch import Tensor, nn

from glassformer.layers.block import Block
from glassformer.layers.family_module import FamilyModule
from glassformer.layers.forward_pass import ForwardPass

Values: TypeAlias = list[Any]  # by slot
Step: TypeAlias = Callable[[nn.Module, Values, Any], None]
Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Plan:
    """What a container does: the input is in slot 0."""

    steps: tuple[Step, ...]
    watched_steps: tuple[Step, ...]  # the same, and sites
    slots: int
    result: int  # its slot
    prepare: tuple[Callable[[nn.Module, Any], Any], ...] = ()  # what the pass is given before the first step

    def __eq__(self, other: object) -> bool:
        """Whether both do the same: partial functions by themselves are equal to none but themselves."""
        return isinstance(other, Plan) and _described(vars(self)) == _described(vars(other))

    def __hash__(self) -> int:
        return hash((self.slots, self.result))

    def run(self, module: nn.Module, x: Tensor, p: ForwardPass | None = None) -> Tensor:
        for function in self.prepare:
            p = function(module, p)
        values: Values = [x, *(None,) * (self.slots - 1)]
        for step in self.steps if p is None or p.tap is None else self.watched_steps:
            step(module, values, p)
        return values[self.result]


def _described(value: Any) -> Any:
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, dict):
        return {name: _described(item) for name, item in value.items()}
    return tuple(map(_described, value)) if isinstance(value, tuple) else value


class Container(FamilyModule):
    plan: Plan

    def forward(self, x: Tensor, p: ForwardPass | None = None) -> Tensor:
        return self.plan.run(self, x, p)


class HeadContainer(Container):
    reads = "states"  # what it takes: those of all tokens, of one of them, or what the pooler gives
    output_path: Path  # of its last layer

    @property
    def output(self) -> Any:
        return part(self, self.output_path)


class BlockContainer(Block, Container):
    """A block; each family has a class of this kind, since other libraries know blocks by their class's name."""

    def __reduce__(self) -> tuple[Any, ...]:
        return new_block, (type(self).__name__,), self.__dict__

    def _get_name(self) -> str:
        return type(self).__name__


@cache
def block_class(name: str) -> type[BlockContainer]:
    """The class of a family's blocks."""
    return type(name, (BlockContainer,), {"__module__": __name__})


def new_block(name: str) -> BlockContainer:
    """A block without anything in it, for copies and pickles."""
    kind = block_class(name)
    return kind.__new__(kind)


def part(module: Any, path: Path) -> Any:
    """A part of a module, as it is now: adapters and packed layers take the place of others."""
    for name in path:
        module = module._modules[name]
    return module


# Steps: the first arguments are bound when a plan is made


def call(path: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    for name in path:
        m = m._modules[name]
    values[write] = m(values[read])


def call_with_pass(path: Path, read: int, write: int, m: Any, values: Values, p: Any) -> None:
    for name in path:
        m = m._modules[name]
    values[write] = m(values[read], p)


def call_shared_block(index: int, path: Path, read: int, write: int, m: Any, values: Values, p: ForwardPass) -> None:
    """One of several blocks that are one module."""
    values[write] = part(m, path)(values[read], replace(p, block_index=index))


def copy_value(read: int, write: int, m: Any, values: Values, p: Any) -> None:
    values[write] = values[read]


def see(site: str, slot: int, m: Any, values: Values, p: ForwardPass) -> None:
    """The value at a site: recorded, and perhaps changed."""
    values[slot] = m.at_site(site, values[slot], p)
