"""Batches: many requests in one, answered when there is room, each as it would be answered alone.

A batch is a job (`jobs`) whose engine asks the server's own routes, so that every dialect, limit and error is the one that a
single request meets. Its rows are asked as the client that sent the batch, a few at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from glassformer.ground.errors import GlassError, InputError, QueueFull
from glassformer.jobs.engines import JobPlan, Records, RowEngine
from glassformer.jobs.formats.openai import batch_request
from glassformer.jobs.formats.row_format import InputRow, JsonObject
from glassformer.jobs.job import LEDGER_SUFFIX, JobProgress, answer_file
from glassformer.serving.file_store import FileStore

JOBS_AT_ONCE = 2
ROWS_AT_ONCE = 8  # of a batch
MAX_KEPT = 1000  # batches, finished ones included
BUSY = 429  # the status of a full queue
RETRY_SECONDS = 1.0
Reason: TypeAlias = Literal["cancelled", "no_room"]  # why a row is not asked
CANCELLED: Reason = "cancelled"
NO_ROOM: Reason = "no_room"
log = logging.getLogger("glassformer")

Ask: TypeAlias = Callable[[str, JsonObject], Awaitable[tuple[int, JsonObject]]]  # a path and a body → status and answer
Outcome: TypeAlias = tuple[int, JsonObject] | GlassError | Reason  # of a row
Output: TypeAlias = Callable[[InputRow, Outcome], JsonObject]  # the row of the output file


@dataclass
class RequestBatch:
    """Requests that are being answered, or were."""

    id: str
    owner: str  # the client that alone may see it
    kind: str  # whose form it has: a dialect's
    ask: Ask
    output: Output
    paths: frozenset[str]  # that its rows may ask
    about: Mapping[str, Any]  # what the client said of it
    created: int = field(default_factory=lambda: int(time.time()))
    started: int | None = None
    ended: int | None = None
    cancelled_at: int | None = None
    progress: JobProgress = field(default_factory=lambda: JobProgress(0, 0, 0, 0))
    cancelled_rows: int = 0
    error: str | None = None  # why there are no answers at all
    result: Path | None = None  # the answers, when it has ended
    files: dict[str, str] = field(default_factory=dict)  # ids of the files that were made of them
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return self.ended is not None


class RequestBatches:
    """The batches of a server. To be called on its event loop."""

    def __init__(self, store: FileStore, most_unfinished: int) -> None:
        self.store = store
        self._most_unfinished = most_unfinished
        self._batches: dict[str, RequestBatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = asyncio.Semaphore(JOBS_AT_ONCE)

    def start(self, batch: RequestBatch, rows: bytes, finished: Callable[[RequestBatch], None] = lambda batch: None) -> None:
        """Begin a batch of rows, lines of JSON; `finished` is called when it has ended, on a thread."""
        unfinished = sum(not each.done for each in self._batches.values())
        if unfinished >= self._most_unfinished:
            raise QueueFull(f"{unfinished} batches wait already, and no more may. Try again later.")
        while len(self._batches) >= MAX_KEPT:
            self.delete(next(each for each in self._batches.values() if each.done).id)
        source = self.store.add(batch.owner, f"{batch.id}.jsonl", "rows", rows)
        self._batches[batch.id] = batch
        loop = asyncio.get_running_loop()
        engine = RouteEngine(batch, self.store, loop)
        task = asyncio.create_task(self._run(batch, engine, source.id, finished))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def get(self, owner: str, kind: str, batch_id: str) -> RequestBatch:
        if (batch := self._batches.get(batch_id)) is None or (batch.owner, batch.kind) != (owner, kind):
            raise InputError(f"there is no batch {batch_id!r} here. Batches are gone when the server stops.")
        return batch

    def list(self, owner: str, kind: str) -> list[RequestBatch]:
        """A client's of a dialect, the newest first."""
        return [batch for batch in reversed(self._batches.values()) if (batch.owner, batch.kind) == (owner, kind)]

    def cancel(self, batch: RequestBatch) -> None:
        """Ask no more of its rows."""
        if not batch.done and not batch.stopping.is_set():
            batch.cancelled_at = int(time.time())
            batch.stopping.set()

    def delete(self, batch_id: str) -> None:
        """Forget a batch that has ended, and its answers; the files that were made of them stay."""
        batch = self._batches.pop(batch_id)
        if batch.result is not None:
            batch.result.unlink(missing_ok=True)

    async def close(self) -> None:
        """Stop all, and remove what they have written."""
        for batch in self._batches.values():
            batch.stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.store.close()

    async def _run(
        self, batch: RequestBatch, engine: RouteEngine, source_id: str, finished: Callable[[RequestBatch], None]
    ) -> None:
        try:
            async with self._running:
                await _on_thread(partial(self._answer, batch, engine, source_id, finished))
        except GlassError as error:
            batch.error = str(error)
        except Exception:
            log.exception(f"the batch {batch.id} failed")
            batch.error = "the server failed at this batch; its log says why."
        finally:
            batch.ended = int(time.time())
            self.store.delete(source_id)

    def _answer(
        self, batch: RequestBatch, engine: RouteEngine, source_id: str, finished: Callable[[RequestBatch], None]
    ) -> None:
        """On a thread: every row through the routes, into a file."""
        batch.started = int(time.time())
        source, target = self.store.get(source_id).path, self.store.folder / f"{batch.id}.jsonl"
        try:
            answer_file(engine, source, target, progress=lambda progress: setattr(batch, "progress", progress))
        finally:
            target.with_name(target.name + LEDGER_SUFFIX).unlink(missing_ok=True)
        batch.result = target
        finished(batch)


async def _on_thread(job: Callable[[], None]) -> None:
    """Run a job on a thread that a server which is stopped at once does not wait for."""
    ended: Future[None] = Future()

    def run() -> None:
        try:
            job()
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)

    threading.Thread(target=run, name="batch", daemon=True).start()
    await asyncio.wrap_future(ended)


class RouteEngine(RowEngine):
    """A server's own routes, asked from the thread of a job."""

    def __init__(self, batch: RequestBatch, store: FileStore, loop: asyncio.AbstractEventLoop) -> None:
        self._batch, self._store, self._loop = batch, store, loop
        self._written = 0  # bytes of answers

    def start(self) -> None:
        pass

    @property
    def seed(self) -> int | None:
        return None

    def fingerprint(self) -> JsonObject:
        return {"batch": self._batch.id}

    def records(
        self, rows: Iterable[InputRow], finished: Container[int], plan: JobPlan, count_tokens: Callable[[int], None]
    ) -> Records:
        remaining = iter(row for row in rows if row.index not in finished)
        pending: dict[Future[Outcome], InputRow] = {}
        while True:
            while len(pending) < ROWS_AT_ONCE and (row := next(remaining, None)) is not None:
                if (outcome := self._known_outcome(row)) is None:
                    pending[asyncio.run_coroutine_threadsafe(self._ask(row.value), self._loop)] = row
                else:
                    yield row.index, self._record(row, outcome)
            if not pending:
                return
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                answered = pending.pop(future)
                yield answered.index, self._record(answered, future.result())

    def _known_outcome(self, row: InputRow) -> Outcome | None:
        """What becomes of a row without being asked, if that is known."""
        if self._batch.stopping.is_set():
            return CANCELLED
        if row.error is not None:
            return row.error
        try:
            _, body = batch_request(row.value, self._batch.paths)
        except GlassError as error:
            return error
        if body.get("stream"):
            return InputError("a batch's answers come whole. Leave stream out.")
        return NO_ROOM if self._written >= self._store.room else None

    async def _ask(self, request: JsonObject) -> Outcome:
        while not self._batch.stopping.is_set():
            status, answer = await self._batch.ask(request["url"], request["body"])
            if status != BUSY:
                return status, answer
            await asyncio.sleep(RETRY_SECONDS)
        return CANCELLED

    def _record(self, row: InputRow, outcome: Outcome) -> JsonObject:
        """What the ledger keeps."""
        output = self._batch.output(row, outcome)
        self._written += len(json.dumps(output))
        self._batch.cancelled_rows += outcome == CANCELLED
        failed = not (isinstance(outcome, tuple) and outcome[0] == 200)
        return {"failed": failed, "prompt_tokens": 0, "completion_tokens": 0, "output": output}


def new_batch_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)
