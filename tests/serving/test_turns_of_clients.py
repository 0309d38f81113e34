"""Jobs of many clients: one of each in turn, and none takes all threads."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, Future, wait

import pytest

from glassformer.ground.errors import QueueFull, Unavailable
from glassformer.serving.job_threads import JobThreads
from tests.see.models import both
from tests.serving.test_scheduler import Client, scheduler_of

LONGEST_WAIT = 60


class Held:
    """A job that goes on until it is let go."""

    def __init__(self) -> None:
        self.began, self.let_go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        assert self.let_go.wait(LONGEST_WAIT)


def held(threads: JobThreads, client: str) -> tuple[Held, Future[None]]:
    job = Held()
    return job, threads.submit(job, client)


def test_a_client_with_many_jobs_waits_for_those_of_others() -> None:
    threads, done = JobThreads("the tests"), list[str]()
    job, _ = held(threads, "a")
    assert job.began.wait(LONGEST_WAIT)
    waiting = [threads.submit(lambda name=name: done.append(name), name[0]) for name in ("a1", "a2", "a3", "b1", "b2", "c1")]  # type: ignore[misc]
    job.let_go.set()
    wait(waiting, LONGEST_WAIT)
    assert done == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_no_client_has_more_than_one_thread() -> None:
    threads = JobThreads("the tests", threads=2)
    first, _ = held(threads, "a")
    second, second_done = held(threads, "a")
    other, other_done = held(threads, "b")
    assert first.began.wait(LONGEST_WAIT)
    assert other.began.wait(LONGEST_WAIT)
    other.let_go.set()
    other_done.result(LONGEST_WAIT)
    threads.submit(lambda: None, "b").result(LONGEST_WAIT)  # there is a thread for others all the time
    assert not second.began.is_set()
    first.let_go.set()
    second.let_go.set()
    second_done.result(LONGEST_WAIT)


def test_who_leaves_makes_room_in_a_full_queue() -> None:
    threads = JobThreads("the tests", most=2)
    job, _ = held(threads, "a")
    assert job.began.wait(LONGEST_WAIT)
    waiting = threads.submit(lambda: None, "a")
    with pytest.raises(QueueFull, match="2 jobs"):
        threads.submit(lambda: None, "b")
    assert waiting.cancel()
    last = threads.submit(lambda: None, "b")
    threads.close(Unavailable("the tests are over"), 0)
    with pytest.raises(CancelledError):
        last.result(LONGEST_WAIT)
    with pytest.raises(Unavailable, match="the tests are over"):
        threads.submit(lambda: None, "b")
    job.let_go.set()


def test_jobs_of_a_model_take_turns_between_clients() -> None:
    model = both("llama", "cpu").model
    scheduler, done, job = scheduler_of(model, Client()), list[str](), Held()
    first = scheduler.call(lambda model: job(), "a")
    assert job.began.wait(LONGEST_WAIT)
    waiting = [scheduler.call(lambda model, name=name: done.append(name), name) for name in ("a", "a", "b")]  # type: ignore[misc]
    job.let_go.set()
    wait([first, *waiting], LONGEST_WAIT)
    scheduler.close()
    assert done == ["a", "b", "a"]
