"""A program being written: its steps, and the buffers that ops' results lie in.

Buffers are (tokens, width) each, and are reused when nothing needs them any more; those of watched sites are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.engine.program import BufferShape, MatrixRef, NormRef, Program, ProgramStep, SiteLocation, StepKind
from glassformer.ops.op import Op
from glassformer.ops.token_mixer import TokenMixer


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
    """Writes steps and gives buffers to ops' results. Each op says in its `lower` what steps it becomes."""

    def __init__(
        self, ops: Sequence[Op], reads: frozenset[str], changes: frozenset[str], config: Any, global_tokens: bool = False
    ) -> None:
        """`global_tokens`: whether rows may have some, which all see and which see all."""
        self.ops = ops
        self.global_tokens = global_tokens
        self.config = config
        self.changes = changes
        self.watched = reads | changes
        self.program = Program()
        self.consumers: dict[int, list[int]] = {}
        for index, op in enumerate(self.ops):
            for operand in op.inputs:
                self.consumers.setdefault(operand, []).append(index)
        self.buffer_of: dict[int, int] = {}  # by op: the buffer of its result
        self.allocations: list[Allocation] = []  # by buffer
        self.deferred_norms: dict[int, tuple[NormRef, int]] = {}  # and their inputs: done by the matmul that reads them
        self.fused: set[int] = set()  # ops that an earlier one has done
        self.last_watched_step = 0

    def kv_place(self, index: int) -> dict[str, int]:
        """Where in a page the keys and values of an attention lie: after those of the layers before, which may have fewer
        heads, or larger ones."""
        op = self.ops[index]
        assert isinstance(op, TokenMixer)
        before = (other for other in self.ops[:index] if isinstance(other, TokenMixer) and other.caches_keys)
        alike: list[Any] = [other for other in before if (other.stack, other.cross) == (op.stack, op.cross)]
        shapes = [(shape.heads, shape.key_size) for other in alike for shape in (other.cached_shape(self.ops),)]
        return {
            "layer": len(shapes), "kv_planes": sum(heads for heads, _ in shapes),
            "kv_numbers": sum(heads * size for heads, size in shapes),
        }  # fmt: skip

    def state_offset(self, index: int) -> int:
        """Where an op's state begins among all that a row keeps."""
        return sum(op.state_size for op in self.ops[:index] if op.stack == self.ops[index].stack)

    def readers(self, index: int) -> list[Op]:
        """The ops that read an op's result."""
        return [self.ops[consumer] for consumer in self.consumers.get(index, [])]

    def is_taken_apart(self, index: int) -> bool:
        """Whether a result is a projection's for several readers, who compute their parts of it."""
        return any(reader.takes_part for reader in self.readers(index))

    def emit(self, kind: StepKind, **fields: Any) -> None:
        self.program.steps.append(ProgramStep(kind, **fields))

    def allocate(self, width: int) -> int:
        """A buffer of this width: one that is free again, or a new one."""
        shape = BufferShape(width)
        for buffer, allocation in enumerate(self.allocations):
            if allocation.free and self.program.buffers[buffer] == shape:
                allocation.reserved = True
                return buffer
        return self._add_buffer(shape, Allocation(reserved=True))

    def add_pinned(self, shape: BufferShape) -> int:
        """A buffer that is read after the pass, and never reused."""
        return self._add_buffer(shape, Allocation(pinned=True))

    def _add_buffer(self, shape: BufferShape, allocation: Allocation) -> int:
        self.program.buffers.append(shape)
        self.allocations.append(allocation)
        return len(self.allocations) - 1

    def _assign(self, op: int, buffer: int) -> None:
        self.buffer_of[op] = buffer
        self.allocations[buffer].reserved = False
        self.allocations[buffer].results.add(op)

    def free(self, buffer: int) -> None:
        """Give a buffer back that holds no op's result."""
        self.allocations[buffer].reserved = False

    def is_needed(self, op: int, after: int) -> bool:
        """Whether an op's result is still to be read: by a later op, or by a watcher."""
        return any(
            consumer > after and consumer not in self.fused for consumer in self._all_consumers(op)
        ) or self._is_watched(op)

    def _all_consumers(self, op: int) -> list[int]:
        """The ops that read a result, directly or through what they do themselves: a deferred norm, a projection that is
        taken apart, what attention does with heads."""
        ops = []
        for consumer in self.consumers.get(op, []):
            later = consumer in self.deferred_norms or len(self.ops[consumer].shape) == 4 or self.is_taken_apart(consumer)
            ops += self._all_consumers(consumer) if later else [consumer]
        return ops

    def _is_watched(self, op: int) -> bool:
        return self.ops[op].site in self.watched

    def free_unneeded(self, now: int) -> None:
        for allocation in self.allocations:
            allocation.results = {op for op in allocation.results if self.is_needed(op, now)}

    def set_result(self, op: int, buffer: int) -> None:
        """An op's result lies in this buffer; so does its site, if it is watched."""
        self._assign(op, buffer)
        self.expose(self.ops[op].site, SiteLocation(buffer, 0, self.program.buffers[buffer].columns))

    def expose(self, site: str | None, location: SiteLocation) -> None:
        if site is None or site not in self.watched:
            return
        self.program.sites[site] = location
        self.last_watched_step = len(self.program.steps)
        self.allocations[location.buffer].pinned = True
        if site in self.changes:
            self.program.changed_sites.setdefault(len(self.program.steps), []).append(site)

    def matmul(
        self, source: int, matrices: Sequence[MatrixRef], width: int, result: int | None, into: int | None = None,
        **fields: Any,
    ) -> int:  # fmt: skip
        """Matmuls of one input, side by side in one buffer; `result`: the op whose result that is."""
        norm, buffer = self.matmul_input(source)
        output = self.allocate(width) if into is None else into
        self.emit(StepKind.MATMUL, input=buffer, output=output, norm=norm, matrices=tuple(matrices), **fields)
        if result is not None:
            self.fused.add(result)
            self.set_result(result, output)
        return output

    def matmul_input(self, op: int) -> tuple[NormRef | None, int]:
        """The norm before a matmul, if there is a deferred one, and the buffer of its input."""
        norm, source = self.deferred_norms.get(op, (None, op))
        return norm, self.buffer_of[source]

    def other_operand(self, op: int, add: int) -> int:
        """What is added to an op's result by a sum."""
        return next(operand for operand in self.ops[add].inputs if operand != op)

    def can_overwrite(self, op: int, now: int) -> bool:
        """Whether nobody else needs the buffer that an op's result lies in."""
        allocation = self.allocations[self.buffer_of[op]]
        unshared = allocation.results <= {op} and not allocation.reserved and not allocation.pinned
        return unshared and not self.is_needed(op, now)
