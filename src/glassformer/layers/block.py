"""A block: the residual stream goes through, and attention and MLP add to it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from glassformer.layers.family_module import FamilyModule
from glassformer.layers.forward_pass import ForwardPass


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

    def add(self, x: Tensor, update: Tensor, p: ForwardPass, site: str, norm: nn.Module | None = None) -> Tensor:
        """The residual sum, the norm that follows it in post-norm families, and the site of the result."""
        x = x + update
        return self.at_site(site, x if norm is None else norm(x), p)
