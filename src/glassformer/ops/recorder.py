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


class Recorder:
    """Records ops. Names inside `block` are relative to that block."""

    def __init__(self, config: Sizes) -> None:
        self.config = config
        self.ops: list[Op] = []
        self._block: int | None = None
        self._prefix = ""
        self._stack = ""

    @contextmanager
    def block(self, number: int, prefix: str, stored: int | None = None) -> Iterator[None]:
        """Ops inside belong to a block; `stored`: its number in the checkpoint, where several blocks share their weights."""
        self._block, self._prefix = number, f"{prefix}.{number if stored is None else stored}."
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
        """The number of the block that ops belong to now."""
        assert self._block is not None
        return self._block

    def record(self, kind: type[Op], module: str, reads: tuple[Value, ...], shape: Shape, site: str | None = None,
               weights: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
               inner_sites: Mapping[str, Shape] = MappingProxyType({}), **options: Any) -> Value:  # fmt: skip
        """An op of a kind; names of its module, weights and sites are completed by the block's."""
        scope = self._stack + (f"blocks.{self._block}." if self._block is not None else "")
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


def linear_weights(module: str, x: Value, out: int, bias: bool = False) -> dict[str, tuple[int, ...]]:
    """The weights of a linear module that reads x."""
    weights: dict[str, tuple[int, ...]] = {f"{module}.weight": (out, x.width)}
    return weights | {f"{module}.bias": (out,)} if bias else weights
