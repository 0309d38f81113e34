"""Matmuls of one input, which become one: a layer's projections are one launch, and their results lie side by side.

The numbers are the same, since each is a sum over its own row of a matrix. What joins is decided by the program alone, and
its weights are one matrix on the device, of which a program that cannot join takes parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glassformer.engine.program import Epilogue, Program, ProgramStep, StepKind
from glassformer.engine.program_pass import stops

EPILOGUES = (Epilogue.NONE, Epilogue.ACTIVATE)


def joined_matmuls(program: Program) -> list[tuple[int, ...]]:
    """The steps that can be one, in the order of their columns: those whose results are activated come last."""
    groups: list[list[int]] = []
    for index, step in enumerate(program.steps):
        if step.kind is not StepKind.MATMUL or step.epilogue not in EPILOGUES or step.output == program.scores:
            continue
        group = next((group for group in reversed(groups) if _can_join(program, group, index)), None)
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    kept: list[tuple[int, ...]] = []
    beside: dict[int, tuple[int, ...]] = {}  # each buffer: those that it lies beside
    for group in groups:
        ordered = tuple(sorted(group, key=lambda index: (program.steps[index].epilogue, index)))
        buffers = outputs(program, ordered)
        if len(group) > 1 and all(beside.get(buffer, buffers) == buffers for buffer in buffers):
            beside |= dict.fromkeys(buffers, buffers)
            kept.append(ordered)
    return kept


def outputs(program: Program, group: Sequence[int]) -> tuple[int, ...]:
    """The buffers that some steps write."""
    return tuple(program.steps[index].output for index in group)


def neighbours(program: Program, joined: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The buffers that lie side by side in a larger one: several layers may use the same."""
    return list(dict.fromkeys(outputs(program, group) for group in joined))


def _can_join(program: Program, group: Sequence[int], index: int) -> bool:
    """Whether a step can be computed together with others, where the first of them is."""
    step, first = program.steps[index], program.steps[group[0]]
    alike = all(
        getattr(step, field) == getattr(first, field) for field in ("input", "norm", "scope", "after_cache", "scale")
    )
    activations = {program.steps[other].activation for other in (*group, index) if _activates(program.steps[other])}
    if not alike or len(activations) > 1 or step.output in {program.steps[other].output for other in group}:
        return False
    between = [program.steps[other] for other in range(group[0], index)]
    untouched = not any(step.input in _written(other) or step.output in _touched(other) for other in between)
    return untouched and not any(group[0] < stop <= index for stop in stops(program))


def _activates(step: ProgramStep) -> bool:
    return step.epilogue is Epilogue.ACTIVATE


def _written(step: ProgramStep) -> set[int | None]:
    return {step.input} if step.kind.rotates else {step.output, step.state_norms}


def _touched(step: ProgramStep) -> set[int | None]:
    """All buffers that a step may read or write."""
    read = {step.input, step.second_input, step.third_input, step.query_distances, step.key_distances}
    return read | _written(step)


def joined_step(program: Program, group: Sequence[int], buffer: int) -> ProgramStep:
    """One step in place of some, which writes to a buffer that theirs lie in."""
    steps = [program.steps[index] for index in group]
    plain = sum(table.shape[0] for step in steps if not _activates(step) for table in step.matrices)
    matrices = tuple(table for step in steps for table in step.matrices)
    return replace(steps[-1], matrices=matrices, output=buffer, activated_from=plain)
