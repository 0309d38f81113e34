"""A PyTorch model of which this process has a part of every large matrix, and what joins the parts.

The families' own code runs unchanged: it takes the number of heads and neurons from the weights that it has. Added to it are
sums after the modules whose inputs are divided, a lookup in a part of the vocabulary, scores put together, and a tap that
shows whole values where a rank has only some of their heads or neurons.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.engine.tensor_parallel.process_group import ProcessGroup
from glassformer.engine.tensor_parallel.split import ModelSplit
from glassformer.ground.sites import Observer, Tap
from glassformer.ops.split import TensorPart, vocabulary_split
from glassformer.torch.heads import CausalLM, Seq2SeqLM


def take_part(whole: Tensor, part: TensorPart) -> Tensor:
    """A part of a tensor: a view where it is one range."""
    parts = [whole.narrow(part.axis, indices.start, len(indices)) for indices in part.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, part.axis)


def connect(model: CausalLM | Seq2SeqLM, split: ModelSplit, group: ProcessGroup) -> None:
    """Let a model that has its rank's part of each weight work together with those of the other ranks."""
    for name in split.summed.values():
        model.get_submodule(name).register_forward_hook(lambda module, inputs, output: group.sum(output))
    for module in model.modules():
        if isinstance(module, nn.Embedding) and len(module.weight) < module.num_embeddings:
            lookup = _PartialLookup(module, group)
            module.register_forward_pre_hook(lookup.before)
            module.register_forward_hook(lookup.after)
    scores = split.scores
    if scores is not None:
        model.head_module.register_forward_hook(lambda module, inputs, output: group.gather(output, scores))


class _PartialLookup:
    """Hooks of an embedding that has the vectors of some tokens: those of the others are added by their ranks."""

    def __init__(self, embedding: nn.Embedding, group: ProcessGroup) -> None:
        (self._own,) = vocabulary_split(embedding.num_embeddings, group.ranks).parts[group.rank]
        self._group = group
        self._foreign: Tensor | None = None  # which ids of the lookup under way are other ranks'

    def before(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (ids,) = inputs
        self._foreign = (ids < self._own.start) | (ids >= self._own.stop)
        return ((ids - self._own.start).masked_fill(self._foreign, 0),)

    def after(self, module: nn.Module, inputs: tuple[Tensor], vectors: Tensor) -> Tensor:
        assert self._foreign is not None
        return self._group.sum(vectors.masked_fill(self._foreign[..., None], 0))


class SplitTap(Tap):
    """A tap at a model of which this rank has a part: whoever watches sees whole values."""

    __slots__ = ("_group", "_sites")

    def __init__(self, observers: Sequence[Observer], split: ModelSplit, group: ProcessGroup) -> None:
        super().__init__(observers)
        self._sites, self._group = split.sites, group

    def apply(self, site: str, value: Any) -> Any:
        split = self._sites.get(site)
        if split is None or not self.wants(site):
            return super().apply(site, value)
        whole = super().apply(site, self._group.gather(value, split))
        return take_part(whole, split.part(self._group.rank))
