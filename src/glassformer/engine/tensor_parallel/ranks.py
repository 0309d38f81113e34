"""The processes that a model is split among, as rank 0 sees them.

Rank 0 is this process: whatever decides what to run is here, and the other ranks follow. Each has a socket over which it
learns of every call before rank 0 makes that call itself; inside a call, the ranks meet only in the sums of their process
group. So all ranks make the same calls in the same order, and rank 0 waits for nobody between them.

Calls run on another thread. Ctrl-C cannot end one in the middle and leave the ranks out of step, and a rank that dies
is noticed while the thread is still waiting for it.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from glassformer.engine.tensor_parallel.process_group import ProcessGroup, join
from glassformer.ground.errors import ExecutorError, GlassError, InputError, RankLost, SiteError
from glassformer.ground.ownership import NotCopied, Shared

Result = TypeVar("Result")
Calls: TypeAlias = "queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None]"  # None: there are no more
TIMEOUT = 300.0  # seconds that a rank waits for the others inside a call: one may have more to compute
POLL = 0.25  # seconds between two looks at whether all ranks live
LAST_WORDS = 3.0  # seconds for a rank that has failed to say why
SAME_ON_ALL_RANKS = (InputError, SiteError, ExecutorError)  # raised by each of them at the same place
START = "from glassformer.engine.tensor_parallel.executor import run_rank; run_rank()"


class Socket(NotCopied, Connection):
    """A rank's end of a socket: a copy would close it."""


@dataclass(frozen=True)
class Follower(NotCopied):
    """Another rank: its process, the socket to it, and where it writes what nobody is to see."""

    rank: int
    process: subprocess.Popen[bytes]
    connection: Socket
    log: Path

    def reason(self) -> str:
        """Why it has ended."""
        with suppress(EOFError, OSError):
            while self.connection.poll(0):
                if isinstance(message := self.connection.recv(), str):
                    return message
        status = self.process.poll()
        if status is not None and status < 0:
            with suppress(ValueError):
                return f"it was ended by {signal.Signals(-status).name}"
        lines = self.log.read_text("utf-8", "replace").split("\n") if self.log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), f"it ended with status {status}")


class _RankFailed(Exception):
    """Another rank has failed, and said why."""


class RankProcesses(Shared):
    """Rank 0 and the processes of the others. What is called on one of them is called on all."""

    def __init__(self, ranks: int, device: str = "cpu", timeout: float = TIMEOUT) -> None:
        """Start the other ranks; `device`: "cpu", or "cuda" for a GPU each."""
        if not hasattr(socket, "socketpair") or os.name == "nt":
            raise ExecutorError("tensor_parallel needs Linux or macOS: ranks inherit sockets. Leave it out.")
        self.ranks, self.device = ranks, device
        self._timeout = timeout
        self._owner = os.getpid()
        self._reason = "the processes of this model have been closed"  # why there are no more calls, once there are none
        self._folder = tempfile.TemporaryDirectory(prefix="glass-ranks-", ignore_cleanup_errors=True)
        folder, threads = Path(self._folder.name), max(1, _all_threads() // ranks if device == "cpu" else _all_threads())
        self._followers = [_start(folder, rank, ranks, device, timeout, threads) for rank in range(1, ranks)]
        self._calls: Calls = queue.SimpleQueue()
        threading.Thread(target=_make_calls, args=(self._calls, threads), name="rank 0", daemon=True).start()
        self.close = weakref.finalize(self, _stop, self._owner, self._followers, self._calls, self._folder)
        self.model_ids = count()
        self.group: ProcessGroup = self._wait(lambda: join(folder, 0, ranks, device, timeout))

    @property
    def processes(self) -> Sequence[int]:
        """The ids of the other ranks' processes."""
        return [follower.process.pid for follower in self._followers]

    def call(self, message: tuple[Any, ...], compute: Callable[[], Result], answered: bool = False) -> Result:
        """Send a message to all other ranks, and do rank 0's own part; `answered`: wait until they have done theirs."""
        followers, group = self._followers, self.group  # and not self, which a waiting call would keep alive

        def call() -> Result:
            for follower in followers:
                follower.connection.send(message)
            result = compute()
            group.finish()
            for follower in followers if answered else ():
                if (failure := follower.connection.recv()) is not None:
                    raise _RankFailed(failure)
            return result

        return self._wait(call, math.inf if answered else self._timeout)

    def call_here(self, call: Callable[[], Result]) -> Result:
        """Do something on rank 0 alone, between two calls."""
        return self._wait(call)

    def _wait(self, call: Callable[[], Result], seconds: float = math.inf) -> Result:
        """Wait for a call on the thread of rank 0; on GPUs for so long, since sums there never give up by themselves."""
        if os.getpid() != self._owner:
            raise ExecutorError("a model that is split among ranks runs only in the process that loaded it, not in a fork.")
        future: Future[Result] = Future()
        self._calls.put((call, future))
        self._wait_for(future, time.monotonic() + (seconds if self.device == "cuda" else math.inf))
        failure = future.exception()
        if failure is None or isinstance(failure, SAME_ON_ALL_RANKS):
            return future.result()
        self._end(failure)
        if isinstance(failure, GlassError):  # of rank 0 itself, such as a file that has changed
            raise failure
        raise self._lost() from failure

    def _wait_for(self, future: Future[Any], deadline: float) -> None:
        """Wait for a call while all ranks live. Ctrl-C waits too, so that the ranks stay in step; twice, it ends them."""
        interrupt: KeyboardInterrupt | None = None
        while not future.done():
            if not self.close.alive:
                raise self._lost()
            try:
                wait([future], POLL)
            except KeyboardInterrupt as error:
                if interrupt is not None:
                    self._end(error)
                    raise
                interrupt = error
            if not future.done() and any(follower.process.poll() is not None for follower in self._followers):
                wait([future], LAST_WORDS)  # a sum with it fails too, as a rule
                deadline = 0
            if not future.done() and time.monotonic() > deadline:
                self._end(TimeoutError("the other ranks do not answer"))
        if interrupt is not None:
            raise interrupt

    def _lost(self) -> RankLost:
        return RankLost(f"{self._reason}. Load the model again.")

    def _end(self, error: BaseException) -> None:
        """End all ranks, which are out of step, and note why."""
        deadline = time.monotonic() + LAST_WORDS
        while not (ended := [each for each in self._followers if each.process.poll() is not None]):
            if not isinstance(error, Exception) or isinstance(error, GlassError) or time.monotonic() > deadline:
                break
            time.sleep(0.01)  # a sum fails on rank 0 a little before the process of the other rank has ended
        if ended:
            self._reason = f"rank {ended[0].rank} of {self.ranks} has stopped: {ended[0].reason()}"
        else:
            first_line = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            self._reason = f"rank 0 of {self.ranks} could not go on: {first_line}"
        if hasattr(self, "group"):
            self.group.abort()
        self.close()


@cache
def _all_threads() -> int:
    """How many threads PyTorch takes for one process, before they are divided among ranks."""
    return torch.get_num_threads()


def _start(folder: Path, rank: int, ranks: int, device: str, timeout: float, threads: int) -> Follower:
    """Start a rank. It inherits its socket, so that nobody else can speak to it; its stdin ends when this process does.

    Not `multiprocessing`, whose processes begin by running the caller's script again, and not in the terminal's process
    group: Ctrl-C is for rank 0.
    """
    ours, theirs = socket.socketpair()
    log = folder / f"rank-{rank}.log"
    arguments = (theirs.fileno(), folder, rank, ranks, device, timeout, threads)
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    with theirs, log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", START, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=errors, pass_fds=[theirs.fileno()], start_new_session=True,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
    return Follower(rank, process, Socket(ours.detach()), log)


def _make_calls(calls: Calls, threads: int) -> None:
    """The thread of rank 0's calls."""
    torch.set_num_threads(threads)
    while (item := calls.get()) is not None:
        call, future = item
        try:
            future.set_result(call())
        except BaseException as error:  # whoever waits for it decides
            future.set_exception(error)
        del item, call, future  # what a call refers to may end with it


def _stop(owner: int, followers: Sequence[Follower], calls: Calls, folder: tempfile.TemporaryDirectory[str]) -> None:
    """End the other ranks: they end when their sockets do, or are ended."""
    if os.getpid() != owner:
        return  # a fork: the ranks are its parent's
    calls.put(None)
    for follower in followers:
        follower.connection.close()
        assert follower.process.stdin is not None
        follower.process.stdin.close()
    for follower in followers:
        try:
            follower.process.wait(LAST_WORDS)
        except subprocess.TimeoutExpired:
            follower.process.kill()
            follower.process.wait()
    folder.cleanup()
