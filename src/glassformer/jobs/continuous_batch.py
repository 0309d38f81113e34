"""The texts of many rows, written together: a row that ends makes place for the next.

Texts are batch-invariant: neither the order of the rows nor what runs beside them changes them. Rows are taken longest
prompt first within a window: where an executor pads its rows, those of similar length leave less of the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from glassformer.decoding import Policy, Step, runs_in_loop
from glassformer.decoding.loop import Loop
from glassformer.ground.errors import GlassError
from glassformer.runtime.model import Model

K = TypeVar("K")
Texts: TypeAlias = list[list[Step]]  # the steps of each of a row's texts

WINDOW = 256  # rows that are read ahead to be sorted


@dataclass(eq=False)
class RunningRow(Generic[K]):
    """A row that is being written."""

    key: K
    policies: Sequence[Policy]
    steps: Texts = field(init=False)
    unfinished: int = field(init=False)  # texts

    def __post_init__(self) -> None:
        self.steps = [[] for _ in self.policies]
        self.unfinished = len(self.policies)


class ContinuousBatch(Generic[K]):
    """Rows that are written together, about `size` texts at a time; `count_tokens` is called after each pass."""

    def __init__(self, model: Model, size: int, count_tokens: Callable[[int], None]) -> None:
        self.model = model
        self.size = size
        self.count_tokens = count_tokens
        self._loop = Loop(model.executor)
        self._running: dict[int, tuple[RunningRow[K], int]] = {}  # by a policy's identity: its row, and which text it is

    def run(self, rows: Iterable[tuple[K, Sequence[Policy] | GlassError]]) -> Iterator[tuple[K, Texts | GlassError]]:
        """Each row's texts, as rows end. A row that comes with an error leaves with it."""
        waiting = longest_first(rows, WINDOW)
        exhausted = False
        try:
            while self._running or not exhausted:
                while len(self._running) < self.size and not exhausted:
                    row = next(waiting, None)
                    exhausted = row is None
                    if row is not None:
                        yield from self._start(*row)
                yield from self._step()
        finally:
            self._loop.close()

    def _start(self, key: K, policies: Sequence[Policy] | GlassError) -> Iterator[tuple[K, Texts | GlassError]]:
        """Let a row join; one that cannot is over at once."""
        if isinstance(policies, GlassError):
            yield key, policies
            return
        row = RunningRow(key, policies)
        try:
            if not runs_in_loop(policies[0].settings):  # beams and drafts have a driver of their own
                self._run_alone(row)
                yield key, row.steps
                return
            self._loop.admit(policies)
        except GlassError as error:
            yield key, error
            return
        self._running.update({id(policy): (row, index) for index, policy in enumerate(policies)})

    def _run_alone(self, row: RunningRow[K]) -> None:
        for index, step in self.model.generate_steps(row.policies):
            row.steps[index].append(step)
            self.count_tokens(1)

    def _step(self) -> Iterator[tuple[K, Texts | GlassError]]:
        """A token for each text; yields the rows that end with it."""
        ended: list[tuple[K, Texts | GlassError]] = []
        tokens = 0
        step: Step | GlassError
        try:
            for policy, step in self._loop.step():
                if id(policy) not in self._running:  # another text of its row has failed in this pass
                    continue
                row, index = self._running[id(policy)]
                if isinstance(step, GlassError):
                    ended.append((row.key, self._fail(row, step)))
                    continue
                row.steps[index].append(step)
                tokens += 1
                if step.finish:
                    del self._running[id(policy)]
                    row.unfinished -= 1
                    if not row.unfinished:
                        ended.append((row.key, row.steps))
        except GlassError as error:
            writing = {id(policy) for policy in self._loop.policies}
            failed = {id(row): row for identity, (row, _) in self._running.items() if identity not in writing}
            if not failed:  # the pass itself has failed, and not a text in it
                raise
            ended += [(row.key, self._fail(row, error)) for row in failed.values()]
        self.count_tokens(tokens)
        yield from ended

    def _fail(self, row: RunningRow[K], error: GlassError) -> GlassError:
        """Take all texts of a row out."""
        for policy in row.policies:
            if self._running.pop(id(policy), None) is not None:
                self._loop.remove(policy)
        return error


def longest_first(
    rows: Iterable[tuple[K, Sequence[Policy] | GlassError]], window: int
) -> Iterator[tuple[K, Sequence[Policy] | GlassError]]:
    """Rows with the longest prompts first among each `window` of them."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, window)):
        yield from sorted(chunk, key=lambda row: -_prompt_length(row[1]))


def _prompt_length(policies: Sequence[Policy] | GlassError) -> int:
    if isinstance(policies, GlassError):
        return 0
    return len(policies[0].prompt if policies[0].source is None else policies[0].source)
