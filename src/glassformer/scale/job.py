"""Batch jobs on a cluster. The driver keeps the ledger, so it alone decides what is finished; workers answer groups of rows.

A worker that is lost loses nothing that it has delivered: the rest of its group goes to another worker, and a new one takes
its place. What it may still deliver afterwards is not read, so no row is answered twice. A driver that is killed takes its
workers along, and goes on from the ledger when it is run again, on this cluster, on another one or on none.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from glassformer.ground.arguments import checked
from glassformer.ground.errors import ExecutorError, GlassError, current_spelling
from glassformer.jobs.engines import JobPlan, Records, RowEngine
from glassformer.jobs.formats.row_format import InputRow
from glassformer.jobs.job import JobProgress, JobSummary, answer_file
from glassformer.scale.cluster import Allotment, allot, connect, machines
from glassformer.scale.worker import Delivery, Load, Worker, WorkerProfile
from glassformer.see.tensor_files import differences

MAX_LOSSES = 24  # of workers one after the other, none of which delivered anything
PATIENCE_SECONDS = 30.0  # after which it is noted that no worker could be started yet
MAX_ROWS = 1024  # of a group, so that memory and messages stay small
MAX_ROW_LOSSES = 3  # of workers, by a row
note = logging.getLogger("glassformer").warning


@checked
def run_job(
    load: Callable[[], Any],
    file: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    address: str | None = None,
    workers: int | None = None,
    gpus: bool | None = None,
    batch_size: int | None = None,
    progress: Callable[[JobProgress], None] | None = None,
    **keywords: Any,
) -> JobSummary:
    """Answer every row of a file on a Ray cluster; the output is the one that `glassformer.jobs.run_job` writes.

    Args:
        load: gives the model or the task, on each worker: `partial(glassformer.load, "smollm2")`.
        file: as for `glassformer.jobs.run_job`; only the driver reads it.
        out: likewise.
        address: HOST:PORT of the cluster, `auto`: the one that this machine belongs to, `local`: one for this job alone. By
            default the one that this process is connected to, or else `local`.
        workers: how many; by default one for each GPU, or else one for each machine.
        gpus: whether a worker has a GPU; by default it does where the cluster has any.
        batch_size: texts that a worker writes together; by default the task's own, or 32.
        progress: called as rows and tokens come.
        keywords: prompt options and settings for every row.
    """
    engine = RayEngine(load, keywords, address, workers, gpus)
    try:
        return answer_file(engine, file, out, batch_size=batch_size, progress=progress)
    finally:
        engine.close()


class RayEngine(RowEngine):
    """Workers of a cluster."""

    def __init__(
        self, load: Load, keywords: Mapping[str, Any], address: str | None, workers: int | None, gpus: bool | None
    ) -> None:
        self._arguments = (load, dict(keywords), run_job, str(Path.cwd()), current_spelling())
        self._address, self._wanted = address, (workers, gpus)
        self._connection = ExitStack()
        self._profile: WorkerProfile | None = None
        self._starting: dict[Any, Any] = {}  # workers that load their model, by what they will return
        self._idle: list[Any] = []
        self._answering: dict[Any, tuple[Any, RowGroup]] = {}  # workers and their groups, by what they deliver
        self._losses = 0  # of workers, since one delivered something

    # What the job asks ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, start all workers, and wait for the first."""
        self._ray = self._connection.enter_context(connect(self._address))
        self._allotment: Allotment = allot(machines(self._ray), *self._wanted)
        self._actor = self._ray.remote(**self._allotment.options)(Worker)
        for _ in range(self._allotment.workers):
            self._start_worker()
        patience: float | None = PATIENCE_SECONDS
        while self._profile is None:
            ready, _ = self._ray.wait([*self._starting], num_returns=1, timeout=patience)
            if not ready:
                cores, gpus = self._allotment.cores, self._allotment.gpus
                note(f"still waiting for a worker with {'a GPU' if gpus else f'{cores} cores'}: the cluster may be in use.")
                patience = None
            for result in ready:
                self._finish_start(result)

    @property
    def profile(self) -> WorkerProfile:
        assert self._profile is not None, "start() comes first"
        return self._profile

    @property
    def seed(self) -> int | None:
        return self.profile.seed

    def fingerprint(self) -> dict[str, Any]:
        return self.profile.fingerprint

    def records(
        self, rows: Iterable[InputRow], finished: Container[int], plan: JobPlan, count_tokens: Callable[[int], None]
    ) -> Records:
        least = plan.batch_size or self.profile.batch_size
        groups = RowGroups(
            rows, finished, total=plan.rows, workers=self._allotment.workers, chunk=self.profile.chunk, least=least
        )
        while True:
            self._assign(groups, plan)
            if not self._answering and groups.exhausted():
                return
            ready, _ = self._ray.wait([*self._answering, *self._starting], num_returns=1)
            for result in ready:
                if result in self._starting:
                    self._finish_start(result)
                    continue
                delivery = self._next_delivery(result, groups)
                if delivery is not None:
                    count_tokens(delivery.tokens)
                    yield from delivery.records

    def close(self) -> None:
        """End all workers, and the connection."""
        for worker in (*self._starting.values(), *self._idle, *(worker for worker, _ in self._answering.values())):
            self._ray.kill(worker)
        self._starting, self._idle, self._answering = {}, [], {}
        self._connection.close()

    # Workers ----------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        worker = self._actor.remote(*self._arguments)
        self._starting[worker.start.remote()] = worker

    def _finish_start(self, result: Any) -> None:
        """Let a worker join whose model is loaded."""
        worker = self._starting.pop(result)
        try:
            profile: WorkerProfile = self._ray.get(result)
        except self._ray.exceptions.RayError as error:
            self._raise_own(error)
            self._replace_lost(worker, error)
            return
        self._profile = self._profile or profile
        if changes := differences(self._profile.fingerprint, profile.fingerprint):
            self._ray.kill(worker)
            raise ExecutorError(
                f"the cluster's machines would give different answers: {'; '.join(changes)}. "
                "Have the same version and model on all of them, and choose the executor."
            )
        self._idle.append(worker)

    def _assign(self, groups: RowGroups, plan: JobPlan) -> None:
        """Give every idle worker a group."""
        while self._idle and (group := groups.next()) is not None:
            worker = self._idle.pop()
            answers = worker.answer.options(num_returns="streaming").remote(group.rows, groups.unfinished(group), plan)
            self._answering[answers] = worker, group

    def _next_delivery(self, answers: Any, groups: RowGroups) -> Delivery | None:
        """What a worker has delivered; None when its group is over, or it was lost."""
        worker, group = self._answering[answers]
        try:
            delivery: Delivery = self._ray.get(next(answers))
            self._losses = 0
            return delivery
        except StopIteration:
            del self._answering[answers]
            self._idle.append(worker)
        except self._ray.exceptions.RayError as error:
            self._raise_own(error)
            del self._answering[answers]
            groups.put_back(group)
            self._replace_lost(worker, error)
        return None

    def _replace_lost(self, worker: Any, error: Exception) -> None:
        """Start another worker; give up where one after the other is lost."""
        self._ray.kill(worker)
        self._losses += 1
        if self._losses == MAX_LOSSES:
            raise ExecutorError(
                f"{MAX_LOSSES} workers were lost one after the other, the last because: {reason_of(error)}. "
                "Check the memory of the cluster's machines, and run the same job again to go on."
            ) from error
        self._start_worker()

    def _raise_own(self, error: Exception) -> None:
        """Raise what our own code raised on a worker; return when it is the worker that was lost."""
        cause = getattr(error, "cause", None)
        if isinstance(cause, GlassError):
            raise cause from None
        if isinstance(error, self._ray.exceptions.RayTaskError):
            raise error


def reason_of(error: Exception) -> str:
    """The first sentence of what Ray says."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")


@dataclass(eq=False)
class RowGroup:
    """Consecutive rows."""

    rows: list[InputRow]
    losses: int = 0  # of workers that had it, since it could not be divided any more


class RowGroups:
    """What is left to be answered. A group has whole chunks of rows, and about `least` of them at the end.

    Groups are large at the beginning, so that workers seldom wait for the next, and small at the end, so that they all
    finish at about the same time (guided self-scheduling; Polychronopoulos and Kuck, 1987). A group whose worker is lost
    comes back in two halves, for other workers: so a row that no worker survives is soon alone, and the others are answered.
    """

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
        if group.losses == MAX_ROW_LOSSES:
            error = ExecutorError(f"{MAX_ROW_LOSSES} workers were lost one after the other while they answered it.")
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
