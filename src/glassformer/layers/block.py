"""A block: the residual stream goes through, and parts add to it."""

from __future__ import annotations

from torch import Tensor

from glassformer.layers.part import Part
from glassformer.layers.passage import Pass


class Block(Part):
    def add(self, x: Tensor, update: Tensor, p: Pass, site: str) -> Tensor:
        """The residual plus, and the site where its result is seen."""
        return self.touch(site, x + update, p)
