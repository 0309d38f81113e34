"""Which part of each weight a rank has, read off a blueprint. Only data: no torch.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from glassformer.blueprints import Blueprint
from glassformer.blueprints.ops import Op, Weight
from glassformer.ground.errors import ExecutorError

Ranges = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a tensor: ranges of indices along an axis, in order; none where other ranks have all of it."""

    axis: int
    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Split:
    """How an axis of a tensor is divided among all ranks."""

    axis: int
    size: int  # of the whole axis
    parts: tuple[Ranges, ...]  # by rank

    def part(self, rank: int) -> Part:
        return Part(self.axis, self.parts[rank])

    def owned(self, rank: int) -> Ranges:
        """The ranges of a rank that no earlier one has."""
        earlier = {part for parts in self.parts[:rank] for part in parts}
        return tuple(part for part in self.parts[rank] if part not in earlier)


@dataclass(frozen=True)
class ModelSplit:
    """How a model is divided among ranks. What is not named here is whole on each of them."""

    ranks: int
    weights: Mapping[str, Split]  # by name
    sites: Mapping[str, Split]
    results: Mapping[int, Split]  # of ops, by number
    summed_modules: Sequence[str]  # each rank's result is a part of the sum
    scores: Split | None  # the head's result; None: whole on each rank

    def weight_parts(self, rank: int) -> dict[str, Part]:
        """A rank's part of each weight that is divided."""
        return {name: split.part(rank) for name, split in self.weights.items()}


def split_model(blueprint: Blueprint, ranks: int, whole_vocabulary: bool = False) -> ModelSplit:
    """Divide a model among so many ranks; an error if it cannot be.

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
    splitter = _Splitter(blueprint, ranks, whole_vocabulary)
    return ModelSplit(
        ranks, splitter.weights, splitter.sites, splitter.results, splitter.summed_modules, splitter.scores
    )  # fmt: skip


def even_parts(size: int, ranks: int) -> tuple[range, ...]:
    """A rank's part of so many things, each as large as the others or larger by one.

    >>> even_parts(5, 2)
    (range(0, 2), range(2, 5))
    """
    return tuple(range(rank * size // ranks, (rank + 1) * size // ranks) for rank in range(ranks))


def head_parts(heads: int, groups: int, ranks: int) -> tuple[tuple[range, ...], tuple[range, ...]]:
    """Each rank's query heads, and the key and value heads that these read.

    >>> head_parts(6, 3, 2)
    ((range(0, 2), range(2, 6)), (range(0, 1), range(1, 3)))
    >>> head_parts(6, 2, 3)
    ((range(0, 3), range(3, 4), range(4, 6)), (range(0, 1), range(1, 2), range(1, 2)))
    """
    per_group = heads // groups
    if ranks <= groups:
        shared = even_parts(groups, ranks)
        return tuple(range(part.start * per_group, part.stop * per_group) for part in shared), shared
    queries: list[range] = []
    read: list[range] = []
    for group, readers in enumerate(even_parts(ranks, groups)):
        first = group * per_group
        for part in even_parts(per_group, len(readers)):
            queries.append(range(first + part.start, first + part.stop))
            read.append(range(group, group + 1))
    return tuple(queries), tuple(read)


def vocabulary_split(size: int, ranks: int, axis: int = 0) -> Split:
    """How a table of so many tokens, or an axis of scores for them, is divided."""
    return _contiguous(axis, even_parts(size, ranks))


class _Splitter:
    """Walks a blueprint's ops in order; `results` has those of which a rank has only a part."""

    def __init__(self, blueprint: Blueprint, ranks: int, whole_vocabulary: bool) -> None:
        self.weights: dict[str, Split] = {}
        self.sites: dict[str, Split] = {}
        self.summed_modules: list[str] = []
        self.scores: Split | None = None
        self._ranks = ranks
        self._model_type = blueprint.model_type
        self._ops = blueprint.ops
        self._readers: list[list[int]] = [[] for _ in self._ops]
        for number, op in enumerate(self._ops):
            for source in op.inputs:
                self._readers[source].append(number)
        self.results: dict[int, Split] = {}
        self._whole_vocabulary = whole_vocabulary
        self._heads: dict[int, tuple[range, ...]] = {}  # ops whose results have heads: each rank's
        for op in self._ops:
            if op.kind == "attend":
                self._divide_heads(op)
        for number, op in enumerate(self._ops):
            self._divide(number, op)

    def _divide_heads(self, attend: Op) -> None:
        """Decide on the heads of all that one attention reads: back to where they are made."""
        query, key, value, *bias = attend.inputs
        queries, shared = head_parts(_size(self._ops[query], 1), _size(self._ops[key], 1), self._ranks)
        for source, parts in ((query, queries), (key, shared), (value, shared), *((number, queries) for number in bias)):
            number = source
            while self._ops[number].kind in ("rotate", "norm", "identity"):
                self._heads[number] = parts
                (number,) = self._ops[number].inputs
            if self._ops[number].kind not in ("heads", "position"):
                raise self._cannot_split(self._ops[number])
            self._heads[number] = parts

    def _divide(self, number: int, op: Op) -> None:
        if number in self._heads:
            self._divide_head_op(number, op)
        elif op.kind == "attend":
            parts = self._heads[op.inputs[0]]
            for site in op.inner_sites:
                self.sites[site] = _contiguous(1, parts)
            self.results[number] = _contiguous(-1, parts, _size(self._ops[op.inputs[0]], 3))
        elif op.kind in ("embed", "scores"):
            self._divide_vocabulary(op)
        elif op.kind == "linear":
            self._divide_linear(number, op)
        elif op.kind == "gate":
            if op.weights:
                self._divide_neurons(number, op)
            else:  # the projection before it has both products, and is divided
                self.results[number] = _contiguous(-1, even_parts(_size(op, -1), self._ranks))
                self._add_site(op, self.results[number])
        elif op.kind == "activate" and op.inputs[0] in self.results:
            self.results[number] = self.results[op.inputs[0]]
            self._add_site(op, self.results[number])
        elif op.kind == "route":
            raise self._cannot_split(op, "it has experts")
        elif any(source in self.results for source in op.inputs):
            raise self._cannot_split(op)

    def _divide_head_op(self, number: int, op: Op) -> None:
        parts = self._heads[number]
        self.results[number] = _contiguous(1, parts)
        self._add_site(op, self.results[number])
        if op.kind == "position":  # a bias for each head
            self._split_weights(op.weights, _contiguous(1, parts))
        elif op.kind == "heads" and not op.weights:  # they are a part of a linear's result
            if self._ops[op.inputs[0]].kind != "linear":
                raise self._cannot_split(self._ops[op.inputs[0]])
        elif op.kind == "heads":
            if len(op.weights) > 2:  # more than a weight and a bias
                raise self._cannot_split(op, "each head has a projection of its own")
            self._split_weights(op.weights, _contiguous(0, parts, _size(op, 3)))

    def _divide_linear(self, number: int, op: Op) -> None:
        weight, *bias = op.weights
        inputs, outputs = (0, 1) if op.options["columns"] else (1, 0)
        if (divided := self.results.get(op.inputs[0])) is not None:
            self.weights[weight.name] = Split(inputs, divided.size, divided.parts)
            for added in bias:  # once, and not by each rank
                parts = ((range(added.shape[0]),), *((),) * (self._ranks - 1))
                self.weights[added.name] = Split(0, added.shape[0], parts)
            self.summed_modules.append(op.module)
            return
        readers = [self._ops[reader] for reader in self._readers[number]]
        if readers and all(reader.kind == "heads" for reader in readers):
            fused = self._fused_parts(number)
            self.weights[weight.name] = Split(outputs, fused.size, fused.parts)
            self.results[number] = Split(-1, fused.size, fused.parts)
            self._split_weights(bias, fused)
        elif readers and all(reader.kind == "gate" for reader in readers):
            inner = _size(op, -1) // 2
            halves = tuple((part, range(inner + part.start, inner + part.stop)) for part in even_parts(inner, self._ranks))
            self._split_weights(op.weights, Split(0, 2 * inner, halves))
            self.results[number] = Split(-1, 2 * inner, halves)
        elif self._leads_to_linear(number):
            self._divide_neurons(number, op, outputs)

    def _fused_parts(self, number: int) -> Split:
        """The outputs of a projection that makes query, key and value at once: one after another, or head by head."""
        parts: list[list[range]] = [[] for _ in range(self._ranks)]
        if any(_size(self._ops[reader], 1) < self._ranks for reader in self._readers[number]):
            reason = "query, key and value are one projection here, and there are fewer key heads than ranks"
            raise self._cannot_split(self._ops[number], reason)
        for reader in self._readers[number]:
            op = self._ops[reader]
            size, first, step = _size(op, 3), op.options["first"], op.options["step"]
            for own, heads in zip(parts, self._heads[reader], strict=True):
                own += [range((first + step * head) * size, (first + step * head + 1) * size) for head in heads]
        return Split(0, _size(self._ops[number], -1), tuple(_joined(own) for own in parts))

    def _leads_to_linear(self, number: int) -> bool:
        """Whether a result is only activated and then projected: as the first half of an MLP's is."""
        return all(
            self._ops[reader].kind == "activate"
            and all(self._ops[after].kind == "linear" for after in self._readers[reader])
            for reader in self._readers[number]
        )

    def _divide_neurons(self, number: int, op: Op, axis: int = 0) -> None:
        parts = even_parts(_size(op, -1), self._ranks)
        for weight in op.weights:
            self._split_weights([weight], _contiguous(axis if len(weight.shape) > 1 else 0, parts))
        self.results[number] = _contiguous(-1, parts)
        self._add_site(op, self.results[number])

    def _divide_vocabulary(self, op: Op) -> None:
        size = op.weights[0].shape[0]
        if any(source in self.results for source in op.inputs):
            raise self._cannot_split(op)
        if self._whole_vocabulary:
            return
        for weight in op.weights:
            self._split_weights([weight], vocabulary_split(size, self._ranks, weight.shape.index(size)))
        if op.kind == "scores":
            self.scores = vocabulary_split(size, self._ranks, -1)

    def _split_weights(self, weights: Iterable[Weight], split: Split) -> None:
        for weight in weights:
            self.weights[weight.name] = split

    def _add_site(self, op: Op, split: Split) -> None:
        if op.site is not None:
            self.sites[op.site] = split

    def _cannot_split(self, op: Op, reason: str = "") -> ExecutorError:
        reason = reason or f"its {op.module or op.kind} needs all of what would be divided"
        return ExecutorError(f"a {self._model_type} model cannot be split among ranks: {reason}. Leave tensor_parallel out.")


def _contiguous(axis: int, parts: Sequence[range], step: int = 1) -> Split:
    """A split in which each rank has one range, of so many indices for each thing."""
    ranges = tuple((range(part.start * step, part.stop * step),) for part in parts)
    return Split(axis, max(part.stop for part in parts) * step, ranges)


def _joined(ranges: Iterable[range]) -> Ranges:
    """Ranges in order, neighbors as one."""
    joined: list[range] = []
    for part in sorted(ranges, key=lambda part: part.start):
        if joined and joined[-1].stop == part.start:
            joined[-1] = range(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def _size(op: Op, axis: int) -> int:
    size = op.shape[axis]
    assert isinstance(size, int), size
    return size
