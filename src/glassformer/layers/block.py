"""A block: the residual stream goes through, and parts add to it."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.layers.part import Part
from glassformer.layers.passage import Pass


class Block(Part):
    def add(self, x: Tensor, update: Tensor, p: Pass, site: str, norm: nn.Module | None = None) -> Tensor:
        """The residual plus, the norm that follows it in post-norm families, and the site where the result is seen."""
        x = x + update
        return self.touch(site, x if norm is None else norm(x), p)
