"""Ops recorded one after another, as a blueprint's equations are written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from glassformer.ops.op import Dim, Op, Shape, Weight, integer


class Sizes(Protocol):
    """What ops need to know of a config."""

    vocab_size: int
    hidden_size: int


@dataclass(frozen=True, slots=True)
class Value:
    """The result of an op while a blueprint is written: the op's index and the shape."""

    op: int
    shape: Shape

    @property
    def width(self) -> int:
        return integer(self.shape[-1])


UNUSED, UNREAD_MASK = -1, -2


@dataclass(frozen=True, slots=True)
class UnweightedModule:
    """A module without weights, in PyTorch: an activation under its name there, or a dropout, which need not have one."""

    op: int  # whose activation it is, or whose result is dropped out; of `attend` the pattern, of `scores` what they read;
    # UNUSED: nothing goes through it; UNREAD_MASK: it is no module, but a mask
    module: str
    rate: float | None = None  # of a dropout


class Recorder:
    """Records ops. Names inside `block` are relative to that block."""

    def __init__(self, config: Sizes) -> None:
        self.config = config
        self.ops: list[Op] = []
        self.parts: list[UnweightedModule] = []
        self._block: int | None = None
        self._prefix = ""
        self._stack = ""
        self._beside = False

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Ops inside are no part of the stream: every block reads a part of their result beside what enters it."""
        self._beside = True
        yield
        self._beside = False

    @contextmanager
    def block(self, index: int, prefix: str, stored: int | None = None) -> Iterator[None]:
        """Ops inside belong to a block; `stored`: its number in the checkpoint, where several blocks share their weights."""
        self._block, self._prefix = index, f"{prefix}.{index if stored is None else stored}."
        yield
        self._block, self._prefix = None, ""

    @contextmanager
    def encoder(self) -> Iterator[None]:
        """Ops inside belong to the encoder of an encoder-decoder."""
        self._stack = "encoder."
        yield
        self._stack = ""

    @property
    def length(self) -> Dim:
        return "source" if self._stack else "length"

    @property
    def keys(self) -> Dim:
        """The tokens that attention looks at."""
        return "source" if self._stack else "keys"

    @property
    def layer(self) -> int:
        """The index of the block that ops belong to now."""
        assert self._block is not None
        return self._block

    def record(self, kind: type[Op], module: str, reads: tuple[Value, ...], shape: Shape, site: str | None = None,
               weights: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
               inner_sites: Mapping[str, Shape] = MappingProxyType({}), **options: Any) -> Value:  # fmt: skip
        """An op of a kind; names of its module, weights and sites are completed by the block's."""
        scope = self._stack + (f"blocks.{self._block}." if self._block is not None else "")
        options |= {"beside": True} if self._beside else {}
        self.ops.append(
            kind(
                (self._prefix + module).rstrip("."),
                tuple(value.op for value in reads),
                shape,
                tuple(Weight(self._prefix + name, size) for name, size in weights.items()),
                self._block,
                self._stack,
                site and scope + site,
                {scope + name: size for name, size in inner_sites.items()},
                options,
            )
        )
        return Value(len(self.ops) - 1, shape)

    def dropout(self, x: Value, rate: float, module: str = "") -> Value:
        """Drop out what an op gives, in training: before it can be seen at the op's site. `module`: its name in PyTorch."""
        self.parts.append(UnweightedModule(x.op, self._prefix + module if module else "", rate))
        return x

    def activation(self, x: Value, module: str) -> Value:
        """Give the activation of an op a name in PyTorch, where it has one."""
        if module:
            self.parts.append(UnweightedModule(x.op, self._prefix + module))
        return x

    def unused(self, module: str, rate: float | None = None) -> None:
        """A module that PyTorch has and nothing goes through: a dropout, or, without a rate, nothing at all."""
        self.parts.append(UnweightedModule(UNUSED, self._prefix + module, rate))

    def unread_mask(self, module: str) -> None:
        """A causal mask that files carry and nothing reads."""
        self.parts.append(UnweightedModule(UNREAD_MASK, self._prefix + module))


def linear_weights(module: str, x: Value, out: int, bias: bool = False) -> dict[str, tuple[int, ...]]:
    """The weights of a linear module that reads x."""
    weights: dict[str, tuple[int, ...]] = {f"{module}.weight": (out, x.width)}
    return weights | {f"{module}.bias": (out,)} if bias else weights
