"""What carries numbers from one token to another: attention, and layers that keep a state. Each has heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from glassformer.ops.op import ArithmeticDraft, Floats, Op, TokenContext, integer


class HeadValues(Protocol):
    """What a head reads at one position of a text."""

    @property
    def ops(self) -> Sequence[Op]: ...

    @property
    def config(self) -> Any: ...

    def token(self, op: Op) -> TokenContext: ...

    def value(self, op: int) -> Floats: ...

    def keys(self, op: int) -> Floats:
        """What queries are compared with: (groups, keys, head_size)."""


class HeadReads(Protocol):
    """How much a head reads of each token, from one position."""

    @property
    def query(self) -> Floats: ...

    @property
    def keys(self) -> Floats:
        """(keys, head_size)"""

    @property
    def key_head(self) -> int: ...

    @property
    def scores(self) -> Floats:
        """Of each key, before it became a weight."""

    @property
    def visible(self) -> npt.NDArray[np.bool_]: ...

    @property
    def sink(self) -> float:
        """A score beside those of the keys; minus infinity: none."""

    def explain(self, e: ArithmeticDraft, key: int) -> None:
        """How the weight of one key came to be."""


class TokenMixer(Op):
    __slots__ = ()
    linear_values: ClassVar[bool] = True  # whether its values are a linear map of the stream, once norms are held

    @property
    def head_shape(self) -> tuple[int, int]:
        _, heads, _, size = self.inner_sites[self.inner_site("heads")]
        return integer(heads), integer(size)

    @property
    def read_site(self) -> str:
        return self.inner_site("heads")

    @property
    def site_prefix(self) -> str:
        """How its sites begin inside a block: attention, cross, or recurrent, of a state that stands beside attention."""
        return self.inner_site("heads").split(".")[-2]

    @property
    def cross(self) -> bool:
        """Whether the values are those of an encoder's tokens."""
        return False

    def notes(self, ops: Sequence[Op]) -> list[str]:
        """What is particular to it, each in a sentence."""
        raise NotImplementedError(self.kind)

    def scores(self, values: HeadValues, index: int, head: int) -> HeadReads:
        """What a head reads, from the position."""
        raise NotImplementedError(self.kind)
