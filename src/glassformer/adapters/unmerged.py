"""A blueprint in which low-rank updates stand beside the matrices that they change: W·x + B·(A·x), op by op.

    y = linear(x, W)        a = linear(x, A)    b = linear(a, B)    w = linear(x, W)    y = b + w

The sum has the site that the product had, so that everything that reads or changes sites works as before. A projection that
makes heads is split into the product, the sum and the heads; a gate into its two products and the gate itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.ops.add import Add
from glassformer.ops.linear import LinearMap
from glassformer.ops.op import Shape


def stands_beside(plan: Blueprint, op: Op) -> bool:
    """Whether an update can stand beside an op's matrices: each of one module, for inputs of the same stack."""
    if not op.updatable_matrices or plan.ops[op.inputs[0]].stack != op.stack:
        return False
    return len(_matrices(op)) == op.updatable_matrices


def adaptable_modules(plan: Blueprint) -> tuple[str, ...]:
    """The modules of the blocks that an update can stand beside: every projection, as peft's "all-linear" has it; but no
    router, and none that is named like an expert's, for which peft would take it."""
    experts = {_last_word(matrix) for op in plan.ops if op.experts for matrix in _matrices(op)}
    inside = [op for op in plan.ops if op.block is not None and stands_beside(plan, op)]
    ops = [op for op in inside if not (op.site or "").endswith("mlp.router")]
    matrices = [matrix for op in ops for matrix in _matrices(op) if _last_word(matrix) not in experts]
    return tuple(dict.fromkeys(matrix.name.removesuffix(".weight") for matrix in matrices))  # some make queries and keys


def _last_word(matrix: Weight) -> str:
    return matrix.name.removesuffix(".weight").rpartition(".")[2]


def _matrices(op: Op) -> list[Weight]:
    return [weight for weight in op.weights if len(weight.shape) == 2 and weight.name.endswith(".weight")]


def with_adapter_ops(plan: Blueprint, ranks: Mapping[str, int]) -> Blueprint:
    """A blueprint with updates of these ranks, by module, beside its matrices."""
    modules = [weight.name.removesuffix(".weight") for op in plan.ops for weight in _matrices(op)]
    return Rewriter(plan, resolve_names(ranks, modules)).rewritten() if ranks else plan


class Rewriter:
    """Ops written once more; each that has adapted matrices says where their updates stand."""

    def __init__(self, plan: Blueprint, ranks: Mapping[str, int]) -> None:
        self.plan, self.ranks = plan, ranks
        self.ops: list[Op] = []
        self.moved: list[int] = []  # by an op's index before: the index of its result now

    def rewritten(self) -> Blueprint:
        for op in self.plan.ops:
            op = replace(op, inputs=tuple(self.moved[index] for index in op.inputs))
            adapted = [matrix for matrix in _matrices(op) if matrix.name.removesuffix(".weight") in self.ranks]
            self.moved.append(op.with_updates(self) if adapted and op.updatable_matrices else self.append(op))
        return replace(self.plan, ops=tuple(self.ops))

    def append(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def product(
        self, op: Op, weights: tuple[Weight, ...], shape: Shape, site: str | None = None, columns: bool = False
    ) -> int:
        """A product by some weights of an op, and its update if it has one; the site is that of the result."""
        module = weights[0].name.removesuffix(".weight")
        rank, scale = self.ranks.get(module), op.options.get("scale", 1.0)
        if rank is None:
            return self.append(self._linear_op(op, module, op.inputs, shape, weights, columns, site, scale))
        inputs, outputs = weights[0].shape if columns else weights[0].shape[::-1]
        down, up = Weight(f"{module}.lora_A.weight", (rank, inputs)), Weight(f"{module}.lora_B.weight", (outputs, rank))
        low = self.append(self._linear_op(op, f"{module}.lora_A", op.inputs, (*shape[:-1], rank), (down,)))
        update = self.append(self._linear_op(op, f"{module}.lora_B", (low,), shape, (up,), scale=scale))
        product = self.append(self._linear_op(op, module, op.inputs, shape, weights, columns, scale=scale))
        options = {"of": ("adapter's update", "product")}
        return self.append(Add(module, (update, product), shape, (), op.block, op.stack, site, options=options))

    @staticmethod
    def _linear_op(
        op: Op, module: str, inputs: tuple[int, ...], shape: Shape, weights: tuple[Weight, ...], columns: bool = False,
        site: str | None = None, scale: float = 1.0,
    ) -> Op:  # fmt: skip
        """A product where another op stands."""
        options = {"columns": columns, "scale": scale}
        return LinearMap(module, inputs, shape, weights, op.block, op.stack, site, options=options)
