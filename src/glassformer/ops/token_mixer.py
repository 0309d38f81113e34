"""What carries numbers from one token to another: attention, and layers that keep a state. Each has heads."""

from __future__ import annotations

from glassformer.ops.op import Op, integer


class TokenMixer(Op):
    __slots__ = ()

    @property
    def head_shape(self) -> tuple[int, int]:
        _, heads, _, size = self.inner_sites[self.inner_site("heads")]
        return integer(heads), integer(size)

    @property
    def read_site(self) -> str:
        return self.inner_site("heads")

    @property
    def cross(self) -> bool:
        """Whether the values are those of an encoder's tokens."""
        return False
