"""The rows of a job in groups, each of which goes to one worker at a time.

Groups are large at the beginning, so that workers seldom wait for the next, and small at the end, so that they all finish
at about the same time (guided self-scheduling; Polychronopoulos and Kuck, 1987). A group whose worker is lost comes back in
two halves, for other workers: so a row that no worker survives is soon alone, and the others are answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from itertools import islice

from glassformer.ground.errors import ExecutorError
from glassformer.jobs.formats.row_format import InputRow

MAX_ROWS = 1024  # of a group, so that memory and messages stay small
MAX_LOSSES = 3  # of workers, by a row


@dataclass(eq=False)
class RowGroup:
    """Consecutive rows."""

    rows: list[InputRow]
    losses: int = 0  # of workers that had it, since it could not be divided any more


class RowGroups:
    """What is left to be answered. A group has whole chunks of rows, and about `least` of them at the end."""

    def __init__(
        self, rows: Iterable[InputRow], finished: Container[int], *, total: int, workers: int, chunk: int, least: int
    ) -> None:
        self._rows = iter(rows)
        self._finished = finished
        self._unread = total
        self._workers = workers
        self._chunk = chunk
        self._least = least
        self._returned: deque[RowGroup] = deque()

    def next(self) -> RowGroup | None:
        """A group with rows that are not finished; those that came back go first."""
        while (group := self._returned.popleft() if self._returned else self._read()) is not None:
            if self.unfinished(group):
                return group
        return None

    def exhausted(self) -> bool:
        """Whether there is no group left, unless one comes back."""
        group = self.next()
        if group is not None:
            self._returned.appendleft(group)
        return group is None

    def put_back(self, group: RowGroup) -> None:
        """The group of a worker that was lost. What has taken too many along is given up: its rows come back as errors."""
        if len(group.rows) > self._chunk:
            half = -(-len(group.rows) // self._chunk) // 2 * self._chunk
            self._returned += (RowGroup(group.rows[:half]), RowGroup(group.rows[half:]))
            return
        group.losses += 1
        if group.losses == MAX_LOSSES:
            error = ExecutorError(f"{MAX_LOSSES} workers were lost one after the other while they answered it.")
            group.rows = [replace(row, error=error) for row in group.rows]
        self._returned.append(group)

    def unfinished(self, group: RowGroup) -> list[int]:
        """The indices of the rows that have no answer yet."""
        return [row.index for row in group.rows if row.index not in self._finished]

    def _read(self) -> RowGroup | None:
        size = min(max(self._unread // (2 * self._workers), self._least), MAX_ROWS)
        rows = list(islice(self._rows, -(-size // self._chunk) * self._chunk))
        self._unread -= len(rows)
        return RowGroup(rows) if rows else None
