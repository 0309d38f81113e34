"""A thread that does one job after the other, and keeps nobody from ending: neither its owner nor the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from glassformer.errors import GlassError

Result = TypeVar("Result")


class JobThread:
    """Like a `ThreadPoolExecutor` of one thread, which however is waited for when the process ends."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._closing: GlassError | None = None

    def submit(self, job: Callable[[], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        with self._changed:
            if self._closing is not None:
                raise self._closing
            self._jobs.append((job, future))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()
        return future

    def close(self, error: GlassError, seconds: float) -> None:
        """Take no more jobs: those that wait are cancelled, and whoever comes gets the error.

        The running one may go on: it is waited for, but no longer than so many seconds.
        """
        with self._changed:
            self._closing = error
            jobs, self._jobs = self._jobs, deque()
            self._changed.notify()
        for _, future in jobs:
            future.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._closing is not None)
                if not self._jobs:
                    return
                job, future = self._jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = job()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del job, future  # nothing is kept alive while it waits
