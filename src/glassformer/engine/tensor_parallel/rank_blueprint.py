"""The blueprint of a rank's part of a model, for engines that run blueprints: fewer heads and neurons, and sums."""

from __future__ import annotations

from dataclasses import replace

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.engine.tensor_parallel.split import ModelSplit
from glassformer.ops.op import Shape
from glassformer.ops.split import Split
from glassformer.ops.sum import Sum


def rank_blueprint(blueprint: Blueprint, split: ModelSplit, rank: int) -> Blueprint:
    """What a rank computes. After each product of which it has a part of the sum, an op adds up all parts."""
    ops: list[Op] = []
    numbers: dict[int, int] = {}  # of the whole model's ops: where their results are here
    for number, op in enumerate(blueprint.ops):
        ops.append(
            replace(
                op,
                inputs=tuple(numbers[source] for source in op.inputs),
                shape=_part_shape(op.shape, split.results.get(number), rank),
                weights=tuple(_part_weight(weight, split.weights.get(weight.name), rank) for weight in op.weights),
                inner_sites={
                    site: _part_shape(shape, split.sites.get(site), rank) for site, shape in op.inner_sites.items()
                },
            )
        )
        if number in split.summed:
            ops[-1] = replace(ops[-1], site=None)  # it is the sum's
            ops.append(Sum(op.module, (len(ops) - 1,), op.shape, block=op.block, stack=op.stack, site=op.site))
        numbers[number] = len(ops) - 1
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
