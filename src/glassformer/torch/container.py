"""Modules made of others: what every module of a family has, a block, and a container that calls its parts.

A container calls its parts in order, as the blueprint says. It has one input, one result, and numbered slots for values in
between: a step reads some and writes one. What is seen at sites is in steps of its own, which only a watched pass has.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from glassformer.ops.module_steps import Path, Step, Values, part
from glassformer.torch.forward_pass import ForwardPass


class FamilyModule(nn.Module):
    """A module that knows its family's name (for printing) and its block's index (for sites)."""

    printed_name: str | None = None  # printed instead of the class name
    family = ""
    stack = ""  # "encoder." in the encoder of an encoder-decoder
    block_index: int | None = None

    def _get_name(self) -> str:
        return self.family + (self.printed_name or type(self).__name__)

    def at_site(self, name: str, value: Tensor, p: ForwardPass) -> Tensor:
        """The value at a site of this module's block: recorded, and perhaps changed, where that site is watched."""
        if p.tap is None:
            return value
        return p.tap.apply(self.site(name, p), value)

    def site(self, name: str, p: ForwardPass) -> str:
        index = self.block_index if p.block_index is None else p.block_index
        return self.stack + name if index is None else f"{self.stack}blocks.{index}.{name}"


def label_modules(model: nn.Module, family: str, stack: str = "") -> None:
    """Set the family's name on every module of a model or stack."""
    for module in model.modules():
        if isinstance(module, FamilyModule):
            module.family, module.stack = family, stack


def label_block(block: nn.Module, index: int) -> None:
    """Set the block's index on every module of it."""
    for module in block.modules():
        if isinstance(module, FamilyModule):
            module.block_index = index


def attach_module(model: nn.Module, name: str, module: nn.Module) -> None:
    """Put a module into a model under a name; under no name, put its children there instead.

    Some checkpoints have a base model's or a head's modules at the top level. The inlined module then shares them with the
    model: whoever replaces one in the model has replaced it in the module.
    """
    if name:
        model.add_module(name, module)
        return
    for kind in ("_modules", "_parameters", "_buffers"):
        children, moved = model.__dict__[kind], module.__dict__[kind]
        children.update(moved)
        module.__dict__[kind] = LiveSubset(children, tuple(moved))


class LiveSubset(MutableMapping[str, Any]):
    """A live view of some names of a mapping."""

    def __init__(self, mapping: dict[str, Any], names: tuple[str, ...]) -> None:
        self.mapping, self.names = mapping, names

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return self.mapping[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.names = (*self.names, *([] if name in self.names else [name]))
        self.mapping[name] = value

    def __delitem__(self, name: str) -> None:
        self.names = tuple(kept for kept in self.names if kept != name)
        del self.mapping[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


class Block(FamilyModule):
    recompute = False  # in training: keep no activations, and compute them again for the gradients
    offload = False  # then: keep what enters the block in the host's memory

    def __call__(self, x: Tensor, p: ForwardPass, *others: Any) -> Any:
        if p.begin is not None:
            first, states = p.begin
            index = self.block_index if p.block_index is None else p.block_index
            assert index is not None
            if index < first:
                return x
            x = states if index == first else x
        recompute = self.recompute and self.training if p.tap is None else p.tap.recompute  # what is seen, if its watch may
        if p.cache is not None or not (recompute and torch.is_grad_enabled()):  # what is remembered must not be so twice
            return super().__call__(x, p, *others)
        with save_on_cpu(pin_memory=x.is_cuda) if self.offload else nullcontext():
            return checkpoint(super().__call__, x, p, *others, use_reentrant=False)


# Containers: the input is in slot 0 --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ContainerPlan:
    """What a container does: the input is in slot 0."""

    steps: tuple[Step, ...]
    watched_steps: tuple[Step, ...]  # the same, and sites
    slots: int
    result: int  # its slot
    prepare: tuple[Callable[[nn.Module, Any], Any], ...] = ()  # what the pass is given before the first step

    def __eq__(self, other: object) -> bool:
        """Whether both do the same: partial functions by themselves are equal to none but themselves."""
        return isinstance(other, ContainerPlan) and _described(vars(self)) == _described(vars(other))

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
    plan: ContainerPlan

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


# Steps: the first arguments are bound when a plan is made


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
