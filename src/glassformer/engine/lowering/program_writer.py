"""A program being written: its steps, and the buffers that ops' results lie in.

Buffers are (tokens, width) each, and are reused when nothing needs them any more; those of watched sites are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints import Blueprint, Op
from glassformer.engine.lowering.weight_refs import norm_ref
from glassformer.engine.program import BufferShape, MatrixRef, NormRef, Program, ProgramStep, SiteLocation, StepKind


@dataclass
class Allocation:
    """What still needs a buffer of a program that is being written."""

    results: set[int] = field(default_factory=set)  # ops whose results lie in it and are still to be read
    reserved: bool = False  # allocated, and not yet or never an op's result
    pinned: bool = False  # read after the pass: a site, or the scores

    @property
    def free(self) -> bool:
        return not (self.results or self.reserved or self.pinned)


class ProgramWriter:
    """Writes steps and gives buffers to ops' results; what each kind of op becomes is up to the classes that extend it."""

    def __init__(
        self, blueprint: Blueprint, stack: str, reads: frozenset[str], changes: frozenset[str], config: Any
    ) -> None:
        self.ops = blueprint.ops
        self.stack = stack
        self.config = config
        self.changes = changes
        self.watched = reads | changes
        self.program = Program()
        self.consumers: dict[int, list[int]] = {}
        for number, op in enumerate(self.ops):
            for operand in op.inputs:
                self.consumers.setdefault(operand, []).append(number)
        self._buffer_of: dict[int, int] = {}  # by op: the buffer of its result
        self._allocations: list[Allocation] = []  # by buffer
        self._deferred_norms: dict[int, Op] = {}  # done by the matmul that reads them
        self._fused: set[int] = set()  # ops that an earlier one has done
        self._last_watched_step = 0

    def _emit(self, kind: StepKind, **fields: Any) -> None:
        self.program.steps.append(ProgramStep(kind, **fields))

    def _allocate(self, width: int) -> int:
        """A buffer of this width: one that is free again, or a new one."""
        shape = BufferShape(width)
        for number, allocation in enumerate(self._allocations):
            if allocation.free and self.program.buffers[number] == shape:
                allocation.reserved = True
                return number
        return self._add_buffer(shape, Allocation(reserved=True))

    def _add_buffer(self, shape: BufferShape, allocation: Allocation) -> int:
        self.program.buffers.append(shape)
        self._allocations.append(allocation)
        return len(self._allocations) - 1

    def _assign(self, op: int, buffer: int) -> None:
        self._buffer_of[op] = buffer
        self._allocations[buffer].reserved = False
        self._allocations[buffer].results.add(op)

    def _free(self, buffer: int) -> None:
        """Give a buffer back that holds no op's result."""
        self._allocations[buffer].reserved = False

    def _is_needed(self, op: int, after: int) -> bool:
        """Whether an op's result is still to be read: by a later op, or by a watcher."""
        return any(
            consumer > after and consumer not in self._fused for consumer in self._all_consumers(op)
        ) or self._is_watched(op)

    def _all_consumers(self, op: int) -> list[int]:
        """The ops that read a result, directly or through a deferred norm or what attention does with heads."""
        ops = []
        for consumer in self.consumers.get(op, []):
            later = consumer in self._deferred_norms or len(self.ops[consumer].shape) == 4
            ops += self._all_consumers(consumer) if later else [consumer]
        return ops

    def _is_watched(self, op: int) -> bool:
        return self.ops[op].site in self.watched

    def _free_unneeded(self, now: int) -> None:
        for allocation in self._allocations:
            allocation.results = {op for op in allocation.results if self._is_needed(op, now)}

    def _width(self, op: Op) -> int:
        width = op.shape[-1]
        assert isinstance(width, int)
        return width

    def _set_result(self, number: int, buffer: int) -> None:
        """An op's result lies in this buffer; so does its site, if it is watched."""
        self._assign(number, buffer)
        self._expose(self.ops[number].site, SiteLocation(buffer, 0, self.program.buffers[buffer].columns))

    def _expose(self, site: str | None, location: SiteLocation) -> None:
        if site is None or site not in self.watched:
            return
        self.program.sites[site] = location
        self._last_watched_step = len(self.program.steps)
        self._allocations[location.buffer].pinned = True
        if site in self.changes:
            self.program.changed_sites.setdefault(len(self.program.steps), []).append(site)

    def _matmul(
        self, source: int, matrices: Sequence[MatrixRef], width: int, result: int | None, into: int | None = None,
        **fields: Any,
    ) -> int:  # fmt: skip
        """Matmuls of one input, side by side in one buffer; `result`: the op whose result that is."""
        norm, buffer = self._matmul_input(source)
        output = self._allocate(width) if into is None else into
        self._emit(StepKind.MATMUL, input=buffer, output=output, norm=norm, matrices=tuple(matrices), **fields)
        if result is not None:
            self._fused.add(result)
            self._set_result(result, output)
        return output

    def _matmul_input(self, number: int) -> tuple[NormRef | None, int]:
        """The norm before a matmul, if there is a deferred one, and the buffer of its input."""
        if (norm := self._deferred_norms.get(number)) is not None:
            return norm_ref(norm), self._buffer_of[norm.inputs[0]]
        return None, self._buffer_of[number]

    def _other_operand(self, number: int, add: int) -> int:
        """What is added to an op's result by a sum."""
        return next(operand for operand in self.ops[add].inputs if operand != number)
