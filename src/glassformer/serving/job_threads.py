"""Threads that do jobs, one of each client in turn, and keep nobody from ending: neither their owner nor the process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from glassformer.ground.errors import GlassError, QueueFull
from glassformer.serving.client_queues import ClientQueues

Result = TypeVar("Result")


class JobThreads:
    """Like a `ThreadPoolExecutor`, which however is waited for when the process ends, and is fair to nobody.

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

        Running ones may go on: they are waited for, but no longer than so many seconds.
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
