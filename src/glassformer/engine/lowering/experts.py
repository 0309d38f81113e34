"""The ops of a mixture of experts as steps."""

from __future__ import annotations

from typing import Any

from glassformer.blueprints import Op
from glassformer.engine.lowering.activations import ACTIVATIONS
from glassformer.engine.lowering.program_writer import ProgramWriter
from glassformer.engine.lowering.weight_refs import expert_weights, matrix_ref
from glassformer.engine.program import Epilogue, StepKind


class ExpertLowering(ProgramWriter):
    """A router's choice, and the products of the chosen experts."""

    def _lower_route(self, number: int, op: Op) -> None:
        buffer = self._allocate(self._width(op))
        options = {"chosen": op.options["chosen"], "normalized": op.options["normalized"]}
        source = self._buffer_of[op.inputs[0]]
        self._emit(StepKind.ROUTE, input=source, output=buffer, expert_count=self._width(op), **options)
        self._set_result(number, buffer)

    def _lower_expert_gate(self, number: int, op: Op) -> None:
        options = op.options
        gate = {
            "epilogue": Epilogue.GATE, "activation": ACTIVATIONS[options["how"]], "gate_limit": options["limit"] or 0.0,
            "gate_offset": options["offset"],
        }  # fmt: skip
        self._set_result(number, self._expert_matmul(op, self._width(op), gate))

    def _lower_expert_linear(self, number: int, op: Op) -> None:
        """Each chosen expert's product, and their sum; the residual sum that follows is done with it."""
        width, shares = self._width(op), self._buffer_of[op.inputs[1]]
        products = self._expert_matmul(op, op.options["chosen"] * width, {})
        consumers = self.consumers.get(number, [])
        fused = {}
        if len(consumers) == 1 and self.ops[consumers[0]].kind == "add" and op.site not in self.watched:
            residual = next(operand for operand in self.ops[consumers[0]].inputs if operand != number)
            fused = {"epilogue": Epilogue.ADD, "third_input": self._buffer_of[residual]}
            self._fused.add(consumers[0])
        buffer = self._allocate(width)
        counts = {"expert_count": op.options["experts"], "chosen": op.options["chosen"]}
        self._emit(StepKind.EXPERT_SUM, input=products, second_input=shares, output=buffer, **counts, **fused)
        self._free(products)
        self._set_result(consumers[0] if fused else number, buffer)

    def _expert_matmul(self, op: Op, width: int, fields: dict[str, Any]) -> int:
        """A product of each chosen expert, side by side in one buffer."""
        source, shares = (self._buffer_of[operand] for operand in op.inputs)
        experts = tuple(tuple(matrix_ref(op, part) for part in parts) for parts in expert_weights(op))
        counts = {"expert_count": len(experts), "chosen": op.options["chosen"]}
        buffer = self._allocate(width)
        self._emit(
            StepKind.EXPERT_MATMUL, input=source, second_input=shares, output=buffer, experts=experts, **counts, **fields
        )  # fmt: skip
        return buffer
