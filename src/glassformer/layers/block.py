"""A block: the residual stream goes through, and attention and MLP add to it."""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.layers.family_module import FamilyModule
from glassformer.layers.forward_pass import ForwardPass


class Block(FamilyModule):
    def add(self, x: Tensor, update: Tensor, p: ForwardPass, site: str, norm: nn.Module | None = None) -> Tensor:
        """The residual sum, the norm that follows it in post-norm families, and the site of the result."""
        x = x + update
        return self.at_site(site, x if norm is None else norm(x), p)
