"""Jobs on a cluster: they write what one machine writes, whatever happens to workers and drivers."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from glassformer.ground.errors import ExecutorError, ModelNotFound, SettingError, UnknownArgument
from glassformer.jobs import JobProgress
from glassformer.jobs import run_job as run_job_here
from glassformer.scale import job as scale_job
from glassformer.scale import run_job
from tests.jobs.models import GREEDY, SAMPLED, chat_folder, chat_model, read_rows, start_glass, write_rows
from tests.scale.loading import load_either, load_embedder, load_model, load_mortal, load_poisonable
from tests.see.models import folder as model_folder

BAD: list[Any] = [{"id": "bad", "prompt": 3}, {"id": "row 1", "prompt": "an id of another row"}, ["no row"]]
ROWS = [*GREEDY, *SAMPLED, *BAD]
MANY = [{**row, "id": f"{row['id']}, {number}"} for number in range(8) for row in (*GREEDY, *SAMPLED)]
POISONED = "3 workers were lost one after the other while they answered it."


def write_expected(folder: Path, rows: list[Any]) -> Path:
    """A folder with rows, and what one machine answers."""
    write_rows(folder / "in.jsonl", rows)
    run_job_here(chat_model(), folder / "in.jsonl", folder / "here.jsonl", seed=7)
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_expected(tmp_path_factory.mktemp("rows"), ROWS)


@pytest.fixture(scope="module")
def many_expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_expected(tmp_path_factory.mktemp("many-rows"), MANY)


def run(folder: Path, out: Path, load: Callable[[], Any] | None = None, **keywords: Any) -> Any:
    """The folder's job on the cluster."""
    load = load or partial(load_model, chat_folder())
    return run_job(load, folder / "in.jsonl", out, **{"seed": 7, "workers": 2, "batch_size": 4, **keywords})


def assert_each_row_once(expected: Path, out: Path) -> None:
    assert out.read_bytes() == (expected / "here.jsonl").read_bytes()
    numbers = [record["row"] for record in read_rows(out.with_name(f"{out.name}.ledger"))[1:]]
    assert sorted(numbers) == list(range(len(read_rows(out))))


def test_a_cluster_writes_what_one_machine_writes(cluster: str, expected: Path, tmp_path: Path) -> None:
    states: list[JobProgress] = []
    summary = run(expected, tmp_path / "out.jsonl", address=cluster, progress=states.append)
    assert_each_row_once(expected, tmp_path / "out.jsonl")
    assert (summary.rows, summary.failed, summary.resumed) == (len(ROWS), len(BAD), 0)
    assert states[-1] == JobProgress(len(ROWS), len(ROWS), len(BAD), summary.completion_tokens)


def test_a_job_of_one_machine_goes_on_on_a_cluster(cluster: str, expected: Path, tmp_path: Path) -> None:
    lines = (expected / "here.jsonl.ledger").read_bytes().splitlines(keepends=True)
    (tmp_path / "out.jsonl.ledger").write_bytes(b"".join(lines[:10]))
    assert run(expected, tmp_path / "out.jsonl").resumed == 9
    assert_each_row_once(expected, tmp_path / "out.jsonl")


def test_embeddings_equal_those_of_one_machine_bit_for_bit(cluster: str, tmp_path: Path) -> None:
    load = partial(load_embedder, model_folder("bert", "base")[0])
    write_rows(tmp_path / "in.jsonl", ["the cat sat on the mat"[: number % 20 + 1] for number in range(300)])
    run_job_here(load(), tmp_path / "in.jsonl", tmp_path / "here.jsonl")
    run_job(load, tmp_path / "in.jsonl", tmp_path / "out.jsonl", workers=2)
    assert_each_row_once(tmp_path, tmp_path / "out.jsonl")


def test_a_worker_that_dies_loses_and_doubles_nothing(cluster: str, many_expected: Path, tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.mkdir()
    run(many_expected, tmp_path / "out.jsonl", partial(load_mortal, chat_folder(), deaths, 3, 60))
    assert_each_row_once(many_expected, tmp_path / "out.jsonl")
    assert len(list(deaths.iterdir())) >= 4


@pytest.mark.sweep
def test_a_row_that_no_worker_survives_becomes_an_error_row(cluster: str, tmp_path: Path) -> None:
    rows = [{"id": number, "prompt": "poison" if number == 2 else "the cat", "max_new_tokens": 4} for number in range(4)]
    write_rows(tmp_path / "in.jsonl", rows)
    run(tmp_path, tmp_path / "out.jsonl", partial(load_poisonable, chat_folder()), workers=1)
    answers = read_rows(tmp_path / "out.jsonl")
    assert [answer["error"] for answer in answers] == [None, None, POISONED, None]
    assert answers[0]["text"] == chat_model().chat("the cat", max_new_tokens=4)


@pytest.mark.sweep
def test_workers_that_are_lost_one_after_the_other_end_the_job(
    cluster: str, expected: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale_job, "MAX_LOSSES", 2)
    with pytest.raises(ExecutorError, match=r"^2 workers were lost one after the other, the last because: The actor died"):
        run(expected, tmp_path / "out.jsonl", partial(os._exit, 1), workers=1)


@pytest.mark.sweep
def test_a_driver_that_is_killed_goes_on(cluster: str, many_expected: Path, tmp_path: Path) -> None:
    process = start_glass(
        "run", "-m", chat_folder(), "--executor", "cpu", "--seed", "7", "--batch-size", "4", "--file",
        many_expected / "in.jsonl", "--out", tmp_path / "out.jsonl", "--ray", cluster, "--workers", "2",
    )  # fmt: skip
    ledger = tmp_path / "out.jsonl.ledger"
    while process.poll() is None and not (ledger.exists() and len(ledger.read_bytes().splitlines()) > 20):
        time.sleep(0.001)
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (-signal.SIGKILL, 0), errors
    assert run(many_expected, tmp_path / "out.jsonl").resumed >= 20
    assert_each_row_once(many_expected, tmp_path / "out.jsonl")


def test_what_is_wrong_with_a_job_is_said_as_on_one_machine(cluster: str, expected: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="'nowhere'"):
        run(expected, tmp_path / "out.jsonl", partial(load_model, Path("nowhere")))
    with pytest.raises(UnknownArgument, match="'temperature'"):
        run(expected, tmp_path / "out.jsonl", temprature=1.0)
    with pytest.raises(
        SettingError, match=r"^5 workers need as many cores; the cluster has 4. Pass fewer, or add machines."
    ):
        run(expected, tmp_path / "out.jsonl", workers=5)


def test_machines_that_would_answer_differently_are_refused(cluster: str, many_expected: Path, tmp_path: Path) -> None:
    loads = tmp_path / "loads"
    loads.mkdir()
    with pytest.raises(ExecutorError, match="^the cluster's machines would give different answers: executor was "):
        run(many_expected, tmp_path / "out.jsonl", partial(load_either, chat_folder(), loads), batch_size=1)


def kill_workers(pids: Path, kills: int, draw: random.Random, over: threading.Event) -> int:
    """Kill workers at random moments until the job is over; returns how many."""
    killed: set[int] = set()
    while len(killed) < kills and not over.wait(draw.random()):
        alive = [
            pid for pid in (int(path.name) for path in pids.iterdir()) if pid not in killed and Path(f"/proc/{pid}").exists()
        ]
        if alive:
            victim = draw.choice(alive)
            os.kill(victim, signal.SIGKILL)
            killed.add(victim)
    return len(killed)


@pytest.mark.sweep
@pytest.mark.skipif(not Path("/proc").exists(), reason="what runs is read from /proc")
def test_twenty_workers_killed_at_random_lose_and_double_nothing(cluster: str, tmp_path: Path) -> None:
    rows = [
        {**row, "id": f"{row['id']}, {number}", "max_new_tokens": 40} for number in range(40) for row in (*GREEDY, *SAMPLED)
    ]
    expected = write_expected(tmp_path, rows)
    pids = tmp_path / "pids"
    pids.mkdir()
    over, killed = threading.Event(), 0

    def kill() -> None:
        nonlocal killed
        killed = kill_workers(pids, 20, random.Random(1), over)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(expected, tmp_path / "out.jsonl", partial(load_model, chat_folder(), pids, 0.01), workers=4)
    finally:
        over.set()
        killer.join()
    assert_each_row_once(expected, tmp_path / "out.jsonl")
    assert killed == 20
