"""The rows of a job in groups, each of which goes to one worker at a time.

Groups are large at the beginning, so that workers seldom wait for the next, and small at the end, so that they all finish
at about the same time (guided self-scheduling; Polychronopoulos and Kuck, 1987). A group comes back when its worker is lost,
and goes to another one, until all of its rows are finished.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import islice

from glassformer.jobs.formats.row_format import Row

MAX_ROWS = 1024  # of a group, so that memory and messages stay small


@dataclass(eq=False)
class RowGroup:
    """Consecutive rows."""

    rows: list[Row]
    failures: int = 0  # workers that were lost since a row of the group was finished

    def __str__(self) -> str:
        first, last = self.rows[0].number + 1, self.rows[-1].number + 1
        return f"row {first:,}" if first == last else f"rows {first:,} to {last:,}"


class RowGroups:
    """What is left to be answered. A group has whole chunks of rows, and about `least` of them at the end."""

    def __init__(
        self, rows: Iterable[Row], finished: Container[int], *, total: int, workers: int, chunk: int, least: int
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
        """The group of a worker that was lost."""
        self._returned.append(group)

    def unfinished(self, group: RowGroup) -> list[int]:
        """The numbers of the rows that have no answer yet."""
        return [row.number for row in group.rows if row.number not in self._finished]

    def _read(self) -> RowGroup | None:
        size = min(max(self._unread // (2 * self._workers), self._least), MAX_ROWS)
        rows = list(islice(self._rows, -(-size // self._chunk) * self._chunk))
        self._unread -= len(rows)
        return RowGroup(rows) if rows else None
