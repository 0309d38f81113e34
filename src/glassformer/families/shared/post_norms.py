"""Attention and MLP with a norm after them: what is added to the stream is what that norm gives.

Shapes: x (batch, length, hidden).
"""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.layers import MLP, Attention, Block, ForwardPass


class PostNormAttention(Attention):
    """Attention that leaves the site of its update to the norm after it; a mixin, put before a family's own attention."""

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        return self.project_output(self.joined_heads(x, p))


class PostNormMLP(MLP):
    """The same for an MLP."""

    def forward(self, x: Tensor, p: ForwardPass) -> Tensor:
        x = self.at_site("mlp.input", x, p)
        return self.down(self.at_site("mlp.hidden", self.neurons(x), p))


class PostNormBlock(Block):
    def add_normed(self, x: Tensor, update: Tensor, norm: nn.Module, p: ForwardPass, name: str, site: str) -> Tensor:
        """The stream with an update that is normed first."""
        return self.add(x, self.at_site(f"{name}.update", norm(update), p), p, site)
