"""What many clients wait for, served in turn, so that none waits for all that another sent: queues, and threads for jobs."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from glassformer.ground.errors import GlassError, QueueFull

Item = TypeVar("Item")


class ClientQueues(Generic[Item]):
    """A queue for each client. Not locked: its owner does that.

    >>> queues = ClientQueues[int]()
    >>> for client, item in (("a", 1), ("a", 2), ("b", 3)): queues.add(client, item)
    >>> [queues.take(client) for client in iter(queues.next_client, None)]
    [1, 3, 2]
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Item]] = {}  # the next to be served is the first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Item]:
        return (item for queue in self._queues.values() for item in queue)

    def add(self, client: str, item: Item) -> None:
        self._queues.setdefault(client, deque()).append(item)
        self._count += 1

    def next_client(self, besides: Container[str] = ()) -> str | None:
        """Whose turn it is; of others than these, if any of them waits."""
        return next((client for client in self._queues if client not in besides), None)

    def first(self, client: str) -> Item:
        """What a client has waited for longest."""
        return self._queues[client][0]

    def take(self, client: str) -> Item:
        """Serve a client, which is the last to be served again."""
        queue = self._queues.pop(client)
        item = queue.popleft()
        self._count -= 1
        if queue:
            self._queues[client] = queue
        return item

    def discard(self, client: str, item: Item) -> None:
        """Take something out, if it still waits."""
        queue = self._queues.get(client, deque())
        if item in queue:
            queue.remove(item)
            self._count -= 1
            if not queue:
                del self._queues[client]

    def clear(self) -> list[Item]:
        """Take everything out."""
        items = [*self]
        self._queues.clear()
        self._count = 0
        return items


Result = TypeVar("Result")


class JobThreads:
    """Threads that keep nobody from ending: neither their owner nor the process.

    Like a `ThreadPoolExecutor`, which however is waited for when the process ends, and is fair to nobody.

    No client has more than one job done at once, so that others find a free thread.
    """

    def __init__(self, name: str, threads: int = 1, most: int | None = None) -> None:
        """`most`: jobs that may wait and be done at once; whoever comes then gets QueueFull."""
        self._name, self._count, self._most = name, threads, most
        self._changed = threading.Condition()
        self._jobs: ClientQueues[tuple[Callable[[], Any], Future[Any]]] = ClientQueues()
        self._working: set[str] = set()  # the clients whose jobs are being done
        self._threads: list[threading.Thread] = []
        self._closing: GlassError | None = None

    def submit(self, job: Callable[[], Result], client: str = "") -> Future[Result]:
        future: Future[Result] = Future()
        with self._changed:
            if self._closing is not None:
                raise self._closing
            waiting = len(self._jobs) + len(self._working)
            if self._most is not None and waiting >= self._most:
                raise QueueFull(f"{waiting} jobs are waiting for {self._name} already. Try again later.")
            self._jobs.add(client, (job, future))
            if len(self._threads) < self._count:
                self._threads.append(threading.Thread(target=self._work, name=f"jobs for {self._name}", daemon=True))
                self._threads[-1].start()
            self._changed.notify_all()
        future.add_done_callback(lambda _: self._forget(client, (job, future)))
        return future

    def _forget(self, client: str, job: tuple[Callable[[], Any], Future[Any]]) -> None:
        """A job that was cancelled gives its place in the queue to others."""
        with self._changed:
            self._jobs.discard(client, job)

    def close(self, error: GlassError, seconds: float) -> None:
        """Take no more jobs: those that wait are cancelled, and whoever comes gets the error.

        Running ones may go on: they are waited for, but no longer than these seconds.
        """
        with self._changed:
            self._closing = error
            jobs = self._jobs.clear()
            self._changed.notify_all()
        for _, future in jobs:
            future.cancel()
        end = time.monotonic() + seconds
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))

    def _work(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """Wait for a job and do it; False when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs.next_client(self._working) is not None or self._closing is not None)
            client = self._jobs.next_client(self._working)
            if client is None:
                return False
            job, future = self._jobs.take(client)
            self._working.add(client)
        try:
            if future.set_running_or_notify_cancel():
                result = job()
                future.set_result(result)
        except BaseException as error:
            future.set_exception(error)
        finally:
            with self._changed:
                self._working.discard(client)
                self._changed.notify_all()
        return True
