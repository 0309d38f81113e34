"""Which part of each weight a rank has: each op of a blueprint answers it (`ops/`). Only data: no torch.

As in Megatron-LM (https://arxiv.org/abs/1909.08053), two products stand back to back. The first is split by its outputs:
query, key and value by heads, gate and up by neurons, so that each rank computes attention or activation of its own part.
The second, attention's output or the MLP's down projection, is split by its inputs: each rank's result is a part of a sum,
which one all-reduce adds up. Token embedding and head are split by the vocabulary, since they are a quarter of a small
model: the vectors are added up (all ranks but one have zeros), the scores are put together. Norms and position tables are
whole everywhere.

Heads are divided along the groups that share a key and a value. Where there are more ranks than groups, ranks that read the
same group each have a copy of its key and value. Nothing need divide evenly: some ranks then have one part more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.ground.errors import ExecutorError
from glassformer.ops.add import Sum
from glassformer.ops.op import Shape
from glassformer.ops.split import Ranges, Split, TensorPart, contiguous, even_parts, vocabulary_split


@dataclass(frozen=True)
class ModelSplit:
    """How a model is divided among ranks. What is not named here is whole on each of them."""

    ranks: int
    weights: Mapping[str, Split]  # by name
    sites: Mapping[str, Split]
    results: Mapping[int, Split]  # of ops, by index
    summed: Mapping[int, str]  # ops of which each rank's result is a part of the sum, with their modules
    scores: Split | None  # the head's result; None: whole on each rank

    def weight_parts(self, rank: int) -> dict[str, TensorPart]:
        """A rank's part of each weight that is divided."""
        return {name: split.part(rank) for name, split in self.weights.items()}


def split_model(blueprint: Blueprint, ranks: int, whole_vocabulary: bool = False) -> ModelSplit:
    """Divide a model among ranks; an error if it cannot be.

    `whole_vocabulary`: each rank has all of embedding and head, as engines need it that choose tokens by themselves.
    """
    if blueprint.head not in ("causal", "seq2seq"):
        raise ExecutorError(
            f"tensor_parallel is for models that write text, and this one has a {blueprint.head} head. Leave it out."
        )
    heads = min(op.inner_sites[site][1] for op in blueprint.ops for site in op.inner_sites if site.endswith(".heads"))
    assert isinstance(heads, int)
    if ranks > heads:
        raise ExecutorError(
            f"tensor_parallel={ranks}, but the model has {heads} attention heads, of which each rank needs one. "
            f"Take at most {heads}."
        )
    made = Splitter(blueprint, ranks, whole_vocabulary)
    return ModelSplit(ranks, made.weights, made.sites, made.results, made.summed, made.scores)


def rank_blueprint(blueprint: Blueprint, split: ModelSplit, rank: int) -> Blueprint:
    """What a rank computes. After each product of which it has a part of the sum, an op adds up all parts."""
    ops: list[Op] = []
    indices: dict[int, int] = {}  # of the whole model's ops: where their results are here
    for index, op in enumerate(blueprint.ops):
        ops.append(
            replace(
                op,
                inputs=tuple(indices[source] for source in op.inputs),
                shape=_part_shape(op.shape, split.results.get(index), rank),
                weights=tuple(_part_weight(weight, split.weights.get(weight.name), rank) for weight in op.weights),
                inner_sites={
                    site: _part_shape(shape, split.sites.get(site), rank) for site, shape in op.inner_sites.items()
                },
            )
        )
        if index in split.summed:
            ops[-1] = replace(ops[-1], site=None)  # it is the sum's
            ops.append(Sum(op.module, (len(ops) - 1,), op.shape, block=op.block, stack=op.stack, site=op.site))
        indices[index] = len(ops) - 1
    return replace(blueprint, ops=tuple(ops))


def _part_shape(shape: Shape, split: Split | None, rank: int) -> Shape:
    if split is None:
        return shape
    sizes = list(shape)
    sizes[split.axis] = sum(map(len, split.parts[rank]))
    return tuple(sizes)


def _part_weight(weight: Weight, split: Split | None, rank: int) -> Weight:
    if split is None or not split.parts[rank]:  # a bias that another rank adds: zeros here
        return weight
    sizes = list(weight.shape)
    sizes[split.axis] = sum(map(len, split.parts[rank]))
    return Weight(weight.name, tuple(sizes))


class Splitter:
    """Walks a blueprint's ops in order, each of which divides itself; `results` has those of which a rank has a part."""

    def __init__(self, blueprint: Blueprint, ranks: int, whole_vocabulary: bool) -> None:
        self.ops, self.ranks = blueprint.ops, ranks
        self.weights: dict[str, Split] = {}
        self.sites: dict[str, Split] = {}
        self.results: dict[int, Split] = {}
        self.summed: dict[int, str] = {}
        self.scores: Split | None = None
        self.heads: dict[int, Ranges] = {}  # ops whose results have heads: each rank's
        self.readers: list[list[int]] = [[] for _ in self.ops]
        self._model_type, self._whole_vocabulary = blueprint.model_type, whole_vocabulary
        for index, op in enumerate(self.ops):
            op.split_inputs(self)
            for source in op.inputs:
                self.readers[source].append(index)
        for index, op in enumerate(self.ops):
            if (heads := self.heads.get(index)) is not None:
                self.set_result(index, contiguous(1, heads))
                op.split_heads(self, heads)
            else:
                op.split(self, index)

    def set_result(self, index: int, split: Split) -> None:
        """An op's result is divided so, and its site."""
        self.results[index] = split
        if (site := self.ops[index].site) is not None:
            self.sites[site] = split

    def split_weights(self, weights: Iterable[Weight], split: Split) -> None:
        for weight in weights:
            self.weights[weight.name] = split

    def divide_neurons(self, op: Op, index: int, axis: int = 0) -> None:
        """Divide an op's outputs evenly; `axis`: that of its matrices which has them."""
        parts = even_parts(op.width, self.ranks)
        for weight in op.weights:
            self.split_weights([weight], contiguous(axis if len(weight.shape) > 1 else 0, parts))
        self.set_result(index, contiguous(-1, parts))

    def divide_vocabulary(self, op: Op) -> Split | None:
        """Divide an op's table of tokens; gives how its scores are."""
        size = op.weights[0].shape[0]
        if any(source in self.results for source in op.inputs):
            raise self.cannot_split(op)
        if self._whole_vocabulary:
            return None
        for weight in op.weights:
            self.split_weights([weight], vocabulary_split(size, self.ranks, weight.shape.index(size)))
        return vocabulary_split(size, self.ranks, -1)

    def cannot_split(self, op: Op, reason: str = "") -> ExecutorError:
        reason = reason or f"its {op.module or op.kind} needs all of what would be divided"
        return ExecutorError(f"a {self._model_type} model cannot be split among ranks: {reason}. Leave tensor_parallel out.")
