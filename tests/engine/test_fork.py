"""Processes that are forked while a model is at work, and use it themselves."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import Feed
from glassformer.ground.ownership import ForkSafeLock
from glassformer.torch import threads
from tests.engine.executors import EXECUTORS, Subject, write_checkpoint

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "fork") or sys.platform == "darwin", reason="needs fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
]

PATIENCE = 60  # seconds, after which a child counts as hanging


def start(act: Callable[[], object]) -> int:
    """Fork a process that acts, and ends itself if it hangs; its id."""
    child = os.fork()
    if child:
        return child
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(PATIENCE)
        os._exit(0 if act() else 3)
    finally:
        os._exit(4)


def results(*children: int) -> list[int]:
    """How each ended: 0 if it acted and was content, -14 if it hung."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(params=[*EXECUTORS, "prefix cache"])
def executor(request: pytest.FixtureRequest, subject: Subject) -> Any:
    if request.param == "prefix cache":
        return PrefixCache(subject.plain())
    return subject.cpu(threads=2) if request.param == "cpu" else subject.plain()


def scores(executor: Any) -> np.ndarray:
    row = executor.open()
    found: np.ndarray = executor.run([Feed(row, [4, 8, 15])])[0].host()
    executor.close(row)
    return found


@pytest.fixture
def at_work(executor: Any) -> Iterator[None]:
    """Another thread that runs one pass after the other."""
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            scores(executor)

    worker = threading.Thread(target=work)
    worker.start()
    yield
    done.set()
    worker.join()


@pytest.mark.usefixtures("at_work")
def test_children_of_a_process_at_work(executor: Any, subject: Subject) -> None:
    wanted = scores(subject.cpu() if "Cpu" in type(executor).__name__ else subject.plain())

    def act() -> bool:
        return np.allclose(scores(executor), wanted, atol=1e-5)

    assert [results(start(act)) for _ in range(4)] == [[0]] * 4  # one after the other
    assert results(*(start(act) for _ in range(4))) == [0] * 4  # all at once
    assert act()


def test_a_lock_that_another_thread_holds(executor: Any) -> None:
    held, release = threading.Event(), threading.Timer(0.2, lambda: done.set())
    done = threading.Event()

    def hold() -> None:
        with executor._lock:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    release.start()
    assert results(start(lambda: scores(executor).size)) == [0]
    holder.join()


def test_a_fork_inside_a_pass_of_its_own(executor: Any) -> None:
    with executor._lock:
        child = start(lambda: executor._lock._is_owned())
    assert results(child) == [0]


def test_locks_in_use_together(executor: Any) -> None:
    """A fork takes outer locks first, as everybody does."""
    outer, inner = ForkSafeLock(outer=True), ForkSafeLock()
    inside, done = threading.Event(), threading.Event()

    def both() -> None:
        with outer:
            inside.set()
            done.wait(0.2)
            with inner:
                pass

    thread = threading.Thread(target=both)
    thread.start()
    inside.wait()

    def act() -> bool:
        with outer, inner:
            return True

    assert results(start(act)) == [0]
    thread.join()


class TestTorchThreads:
    @pytest.fixture(autouse=True)
    def _two_threads(self) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(threads)

    def test_work_that_is_shared_among_threads(self) -> None:
        values, square = torch.ones(1 << 20), torch.ones(512, 512)

        def act() -> bool:
            return bool((values.sqrt().sum() == 1 << 20) & ((square @ square)[0, 0] == 512))

        assert act()
        assert results(start(act), start(act)) == [0, 0]
        assert act()

    def test_without_a_call_that_ends_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(threads, "PAUSE_FUNCTIONS", [])
        assert results(start(lambda: torch.get_num_threads() == 1)) == [0]
        assert torch.get_num_threads() == 2


def test_a_loaded_model(tmp_path: Path) -> None:
    import glassformer
    from tests.see import models

    model = glassformer.load(models.folder("llama", "causal")[0], executor="cpu")
    wanted = model.watch("the cat", max_new_tokens=3).text
    children = [start(lambda: model.watch("the cat", max_new_tokens=3).text == wanted) for _ in range(3)]
    assert results(*children) == [0] * 3
