"""A blueprint in which low-rank updates stand beside the matrices that they change: W·x + B·(A·x), op by op.

    y = linear(x, W)        a = linear(x, A)    b = linear(a, B)    w = linear(x, W)    y = b + w

The sum has the site that the product had, so that everything that reads or changes sites works as before. A projection that
makes heads is split into the product, the sum and the heads; a gate into its two products and the gate itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.blueprints.ops import EXPERT_OPS, Shape
from glassformer.checkpoint.legacy_names import resolve_names


def stands_beside(plan: Blueprint, op: Op) -> bool:
    """Whether an update can stand beside an op's matrices: one matrix of inputs of the same stack."""
    if op.kind not in ("linear", "heads", "gate") or plan.ops[op.inputs[0]].stack != op.stack:
        return False
    return len(_matrices(op)) == (2 if op.kind == "gate" else 1)


def adaptable_modules(plan: Blueprint) -> tuple[str, ...]:
    """The modules of the blocks that an update can stand beside: every projection, as peft's "all-linear" has it; but no
    router, and none that is named like an expert's, for which peft would take it."""
    experts = {_last_word(matrix) for op in plan.ops if op.kind in EXPERT_OPS for matrix in _matrices(op)}
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
    return _Rewriter(plan, resolve_names(ranks, modules)).rewritten() if ranks else plan


class _Rewriter:
    def __init__(self, plan: Blueprint, ranks: Mapping[str, int]) -> None:
        self.plan, self.ranks = plan, ranks
        self.ops: list[Op] = []
        self.moved: list[int] = []  # by the number of an op before: the number of its result now

    def rewritten(self) -> Blueprint:
        for op in self.plan.ops:
            op = replace(op, inputs=tuple(self.moved[number] for number in op.inputs))
            adapted = [matrix for matrix in _matrices(op) if matrix.name.removesuffix(".weight") in self.ranks]
            if not adapted or op.kind not in ("linear", "heads", "gate"):
                self.moved.append(self._append(op))
            else:
                self.moved.append(getattr(self, f"_{op.kind}")(op))
        return replace(self.plan, ops=tuple(self.ops))

    def _append(self, op: Op) -> int:
        self.ops.append(op)
        return len(self.ops) - 1

    def _linear(self, op: Op) -> int:
        return self._product(op, op.weights, op.shape, op.site, bool(op.options.get("columns")))

    def _heads(self, op: Op) -> int:
        batch, heads, length, size = op.shape
        assert isinstance(heads, int)
        assert isinstance(size, int)
        product = self._product(op, op.weights, (batch, length, heads * size))
        return self._append(replace(op, inputs=(product,), weights=(), options={**op.options, "first": 0, "step": 1}))

    def _gate(self, op: Op) -> int:
        half = len(op.weights) // 2
        products = tuple(self._product(op, weights, op.shape) for weights in (op.weights[:half], op.weights[half:]))
        return self._append(replace(op, inputs=products, weights=()))

    def _product(
        self, op: Op, weights: tuple[Weight, ...], shape: Shape, site: str | None = None, columns: bool = False
    ) -> int:
        """A product by some weights of an op, and its update if it has one; the site is that of the result."""
        module = weights[0].name.removesuffix(".weight")
        rank, scale = self.ranks.get(module), op.options.get("scale", 1.0)
        if rank is None:
            return self._append(self._linear_op(op, module, op.inputs, shape, weights, columns, site, scale))
        inputs, outputs = weights[0].shape if columns else weights[0].shape[::-1]
        down, up = Weight(f"{module}.lora_A.weight", (rank, inputs)), Weight(f"{module}.lora_B.weight", (outputs, rank))
        low = self._append(self._linear_op(op, f"{module}.lora_A", op.inputs, (*shape[:-1], rank), (down,)))
        update = self._append(self._linear_op(op, f"{module}.lora_B", (low,), shape, (up,), scale=scale))
        product = self._append(self._linear_op(op, module, op.inputs, shape, weights, columns, scale=scale))
        options = {"adapter": True}
        return self._append(Op("add", module, (update, product), shape, (), op.block, op.stack, site, options=options))

    @staticmethod
    def _linear_op(
        op: Op, module: str, inputs: tuple[int, ...], shape: Shape, weights: tuple[Weight, ...], columns: bool = False,
        site: str | None = None, scale: float = 1.0,
    ) -> Op:  # fmt: skip
        """A product where another op stands."""
        return Op(
            "linear", module, inputs, shape, weights, op.block, op.stack, site, options={"columns": columns, "scale": scale}
        )
