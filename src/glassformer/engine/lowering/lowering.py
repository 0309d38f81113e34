"""A stack's ops as steps, one after another."""

from __future__ import annotations

from glassformer.blueprints import Op
from glassformer.engine.lowering.activations import ACTIVATIONS
from glassformer.engine.lowering.attention import AttentionLowering
from glassformer.engine.lowering.experts import ExpertLowering
from glassformer.engine.lowering.program_writer import Allocation
from glassformer.engine.lowering.weight_refs import gate_matrices, matrix_ref, norm_ref
from glassformer.engine.program import (
    BufferShape,
    Epilogue,
    Program,
    SinusoidTable,
    StepKind,
    Table,
    TokenScope,
)
from glassformer.ground.errors import ExecutorError

MATMUL_OPS = ("heads", "linear", "gate", "scores")


class Lowering(AttentionLowering, ExpertLowering):
    """Writes the program of one stack: the model, or one of the two stacks of an encoder-decoder."""

    def lower(self) -> Program:
        for number, op in enumerate(self.ops):
            if op.stack != self.stack or number in self._fused:
                continue
            getattr(self, f"_lower_{op.kind}")(number, op)
            self._free_unneeded(number)
        if self.stack:
            self._store_source_keys()
        if self.program.scores is not None:
            self._restrict_to_scored()
        return self.program

    def _restrict_to_scored(self) -> None:
        """After the last keys and values are stored, only scored tokens are needed, but for a later watched site."""
        steps = self.program.steps
        last = max(number for number, step in enumerate(steps) if step.kind in (StepKind.ROPE_KV_STORE, StepKind.KV_STORE))
        for number, step in enumerate(steps[last + 1 :], last + 1):
            step.after_cache = True
            if number >= self._last_watched_step:
                step.scope = step.scope or TokenScope.SCORED

    def _lower_embed(self, number: int, op: Op) -> None:
        tables: list[Table] = [matrix_ref(op)]
        first, last = 0, number
        while self.ops[last].site not in self.watched and len(self.consumers.get(last, [])) == 1 and len(tables) < 3:
            consumer = self.ops[self.consumers[last][0]]
            if consumer.kind != "position":
                break
            how = consumer.options["how"]
            if how == "sinusoid":
                shape = (self.config.max_position_embeddings, self._width(op))
                halves, stored = bool(consumer.options.get("halves")), consumer.options.get("stored", "")
                tables.append(SinusoidTable(shape, halves, stored))
            elif how == "segments" and len(tables) == 1:
                raise ExecutorError("native engines cannot add token types to vectors without positions.")
            elif how in ("learned", "segments"):
                tables.append(matrix_ref(consumer))
                first = consumer.options["first"] if how == "learned" else first
            last = self.consumers[last][0]
            self._fused.add(last)
        buffer = self._allocate(self._width(op))
        self._emit(StepKind.EMBED, output=buffer, matrices=tuple(tables), position_offset=first, scale=op.options["scale"])
        self._set_result(last, buffer)

    def _lower_position(self, number: int, op: Op) -> None:
        if op.options["how"] not in ("buckets", "distances"):
            raise ExecutorError(f"native engines cannot add positions of the kind {op.options['how']!r} here.")

    def _lower_norm(self, number: int, op: Op) -> None:
        if (
            len(op.shape) == 4
            or self._is_split_into_heads(number)
            or self.ops[op.inputs[0]].options.get("how") == "distances"
        ):
            return  # of heads, or of distances' vectors: done by the attention that reads them
        readers = [self.ops[consumer] for consumer in self.consumers.get(number, [])]
        if readers and all(consumer.kind in MATMUL_OPS for consumer in readers) and op.site not in self.watched:
            self._deferred_norms[number] = op
            return
        source = self._buffer_of[op.inputs[0]]
        buffer = self._allocate(self._width(op))
        self._emit(StepKind.NORM, input=source, output=buffer, norm=norm_ref(op))
        self._set_result(number, buffer)

    def _lower_heads(self, number: int, op: Op) -> None:
        """Nothing yet: done by the attention that reads them."""

    _lower_rotate = _lower_heads

    def _lower_identity(self, number: int, op: Op) -> None:
        if len(op.shape) == 4:
            return  # of heads: done by the attention that reads them
        buffer = self._buffer_of[op.inputs[0]]
        if op.site in self.changes:  # a change is seen by those who read it here, and by nobody else
            copy = self._allocate(self._width(op))
            self._emit(StepKind.COPY, input=buffer, output=copy)
            buffer = copy
        self._set_result(number, buffer)

    def _lower_linear(self, number: int, op: Op) -> None:
        consumers = self.consumers.get(number, [])
        norms = (consumer for consumer in consumers if self.ops[consumer].kind == "norm")
        if any(self._is_split_into_heads(result) for result in (number, *norms)):
            return  # a fused projection: done by the attention that reads its parts
        if any(self.ops[consumer].kind == "gate" and len(self.ops[consumer].inputs) == 1 for consumer in consumers):
            return  # a fused projection too: done by the gate
        fusable = len(consumers) == 1 and op.site not in self.watched
        follower = self.ops[consumers[0]] if fusable else None
        width, scale = self._width(op), op.options["scale"]
        if follower is not None and follower.kind == "activate":
            fused = {"epilogue": Epilogue.ACTIVATE, "activation": ACTIVATIONS[follower.options["how"]]}
            self._matmul(op.inputs[0], [matrix_ref(op)], width, consumers[0], scale=scale, **fused)
        elif (
            follower is not None and follower.kind == "add" and self._other_operand(number, consumers[0]) in self._buffer_of
        ):
            self._matmul_add(number, op, consumers[0])
        else:
            self._matmul(op.inputs[0], [matrix_ref(op)], width, number, scale=scale)

    def _is_split_into_heads(self, number: int) -> bool:
        """Whether a result is all heads of a projection side by side: a linear's, or that of a norm of all of them."""
        return len(self.ops[number].shape) == 3 and any(
            self.ops[consumer].kind == "heads" and not self.ops[consumer].weights
            for consumer in self.consumers.get(number, [])
        )

    def _matmul_add(self, number: int, op: Op, add: int) -> None:
        """A matmul and the residual sum that follows it; in place, unless the residual is still needed."""
        residual = self._other_operand(number, add)
        buffer = self._buffer_of[residual]
        allocation = self._allocations[buffer]
        self._fused.add(add)
        unshared = allocation.results <= {residual} and not allocation.reserved and not allocation.pinned
        into = buffer if unshared and not self._is_needed(residual, number) else None
        fused = {"epilogue": Epilogue.ADD, "second_input": buffer, "scale": op.options["scale"]}
        self._matmul(op.inputs[0], [matrix_ref(op)], self._width(op), add, into=into, **fused)

    def _lower_activate(self, number: int, op: Op) -> None:
        buffer = self._allocate(self._width(op))
        how = ACTIVATIONS[op.options["how"]]
        self._emit(StepKind.ACTIVATE, input=self._buffer_of[op.inputs[0]], output=buffer, activation=how)
        self._set_result(number, buffer)

    def _lower_gate(self, number: int, op: Op) -> None:
        how, width = ACTIVATIONS[op.options["how"]], self._width(op)
        projection = op if op.weights else self.ops[op.inputs[0]]
        if len(op.inputs) == 2 or not projection.weights:  # of results that are there already: two, or the halves of one
            gate, up = self._buffer_of[op.inputs[0]], self._buffer_of[op.inputs[-1]]
            column = 0 if len(op.inputs) == 2 else width
            buffer = self._allocate(width)
            self._emit(StepKind.GATE, input=gate, second_input=up, column=column, output=buffer, activation=how)
            self._set_result(number, buffer)
            return
        matrices = gate_matrices(op, projection)
        norm, source = self._matmul_input(projection.inputs[0])
        buffer = self._allocate(self._width(op))
        fused = {"norm": norm, "epilogue": Epilogue.GATE, "activation": how}
        self._emit(StepKind.MATMUL, input=source, output=buffer, matrices=matrices, **fused)
        self._set_result(number, buffer)

    def _lower_add(self, number: int, op: Op) -> None:
        first, second = (self._buffer_of[operand] for operand in op.inputs)
        buffer = self._allocate(self._width(op))
        self._emit(StepKind.ADD, input=second, second_input=first, output=buffer)
        self._set_result(number, buffer)

    def _lower_sum(self, number: int, op: Op) -> None:
        buffer = self._buffer_of[op.inputs[0]]
        self._emit(StepKind.SUM_OVER_RANKS, input=buffer, output=buffer)
        self._set_result(number, buffer)

    def _lower_scores(self, number: int, op: Op) -> None:
        norm, source = self._matmul_input(op.inputs[0])
        buffer = self._add_buffer(BufferShape(self._width(op)), Allocation(pinned=True))  # its own: it has fewer rows
        scale, softcap = op.options.get("scale", 1.0), op.options.get("softcap") or 0.0
        self._emit(
            StepKind.MATMUL, input=source, output=buffer, norm=norm, matrices=(matrix_ref(op),), scale=scale,
            softcap=softcap, scope=TokenScope.GATHERED,
        )  # fmt: skip
        self.program.scores = buffer

    def _lower_pool(self, number: int, op: Op) -> None:
        raise ExecutorError("native engines have no heads that pool.")
