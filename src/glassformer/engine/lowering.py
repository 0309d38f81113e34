"""A blueprint to a program: which ops are fused, in which buffer each result lies, and where sites are.

What steps an op becomes is in its file (`ops/`). Ops are fused where nobody watches in between: norm and matmuls of one
input; head norms, RoPE and the store to the KV cache; a matmul and the activation, gate or sum that follows it. A site that
is read or changed is simply not fused away, so that every site can be had from an engine itself, and the numbers stay the
same bit for bit. A program is made once for each set of sites, and kept. It is for every engine: needs neither torch nor
ctypes.
"""

from __future__ import annotations

from typing import Any

from glassformer.blueprints import Blueprint
from glassformer.engine.program import MatrixRef, Program, TokenScope
from glassformer.ops.program_writer import ProgramWriter


class Lowering(ProgramWriter):
    """Writes the program of one stack: the model, or one of the two stacks of an encoder-decoder."""

    def __init__(
        self, blueprint: Blueprint, stack: str, reads: frozenset[str], changes: frozenset[str], config: Any,
        global_tokens: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(blueprint.ops, reads, changes, config, global_tokens)
        self.stack = stack

    def lower(self) -> Program:
        for index, op in enumerate(self.ops):
            if op.stack == self.stack and index not in self.fused:
                op.lower(self, index)
                self.free_unneeded(index)
        if self.stack:
            for index, op in enumerate(self.ops):
                op.lower_at_source(self, index)
        if self.program.scores is not None:
            self._restrict_to_scored()
        return self.program

    def _restrict_to_scored(self) -> None:
        """After the last change of what rows hold, only scored tokens are needed, but for a later watched site."""
        steps = self.program.steps
        last = max(index for index, step in enumerate(steps) if step.kind.changes_row)
        for index, step in enumerate(steps[last + 1 :], last + 1):
            step.after_cache = True
            if index >= self.last_watched_step:
                step.scope = step.scope or TokenScope.SCORED


def required_matrices(blueprint: Blueprint) -> list[MatrixRef]:
    """All matrices that a blueprint's matmuls and tables need, without their biases."""
    ops = blueprint.ops
    divided = {op.inputs[0] for op in ops if op.divides_matrix}
    required: list[MatrixRef] = []
    for index, op in enumerate(ops):
        if index not in divided:
            required += op.matrices(ops[op.inputs[0]] if op.inputs else None)
    return list(dict.fromkeys(matrix._replace(biases=()) for matrix in required))
