"""Jobs in processes of their own that are killed, interrupted, or run out of disk, and go on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.jobs.models import GREEDY, SAMPLED, chat_folder, read_rows, start_glass, write_rows
from tests.patience import patience

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
ROWS = [{**row, "id": f"{row['id']}, {round_}"} for round_ in range(10) for row in (*GREEDY, *SAMPLED)]


PAUSE = """
import os, signal
from glassformer.jobs.ledger import Ledger

append = Ledger.append

def append_and_stand_still(ledger, row, data):
    append(ledger, row, data)
    if len(ledger) == {rows}:
        os.kill(os.getpid(), signal.SIGSTOP)

Ledger.append = append_and_stand_still
"""


def start_job(folder: Path, first: str = "") -> subprocess.Popen[str]:
    """The job of the folder, as `glass run`."""
    words = ("run", "-m", chat_folder(), "--executor", "cpu", "--threads", "1", "--seed", "7", "--batch-size", "8")
    return start_glass(*words, "--file", folder.parent / "in.jsonl", "--out", folder / "out.jsonl", first=first)


def start_and_pause_job(folder: Path, rows: int) -> subprocess.Popen[str]:
    """That job, which stops when it has written `rows` rows; SIGCONT lets it go on."""
    process = start_job(folder, PAUSE.format(rows=rows))
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    return process


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that nobody stopped."""
    folder = tmp_path_factory.mktemp("jobs") / "unbroken"
    folder.mkdir()
    write_rows(folder.parent / "in.jsonl", ROWS)
    process = start_job(folder)
    output, errors = process.communicate(timeout=patience(240))
    assert process.returncode == 0, errors
    assert output == ""
    assert f"{len(ROWS)} rows in" in errors
    return folder


@pytest.fixture
def folder(unbroken: Path, tmp_path: Path) -> Path:
    """An empty folder for another run of it."""
    place = unbroken.parent / tmp_path.name
    place.mkdir()
    return place


def wait_for_bytes(process: subprocess.Popen[str], folder: Path, size: int) -> None:
    """Wait until a job's ledger is so large, or the process has ended."""
    ledger = folder / "out.jsonl.ledger"
    while process.poll() is None and not (ledger.exists() and ledger.stat().st_size >= size):
        time.sleep(0.0005)


def kill_and_go_on(unbroken: Path, folder: Path, kills: int, draw: random.Random) -> None:
    """Kill a job again and again, anywhere, until it is finished: it has written what the unbroken job has."""
    size = (unbroken / "out.jsonl.ledger").stat().st_size
    for _ in range(kills):
        process = start_job(folder)
        wait_for_bytes(process, folder, draw.randint(0, size))
        time.sleep(draw.choice([0, 0, draw.random() * 0.02]))
        process.kill()
        process.communicate()
    process = start_job(folder)
    _, errors = process.communicate(timeout=patience(240))
    assert process.returncode == 0, errors
    assert (folder / "out.jsonl").read_bytes() == (unbroken / "out.jsonl").read_bytes()
    rows = [record["row"] for record in read_rows(folder / "out.jsonl.ledger")[1:]]
    assert sorted(rows) == list(range(len(ROWS)))
    assert not [path for path in folder.iterdir() if path.name not in ("out.jsonl", "out.jsonl.ledger")]


def test_a_job_that_is_killed_goes_on(unbroken: Path, folder: Path) -> None:
    kill_and_go_on(unbroken, folder, 3, random.Random(1))


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(20))
def test_a_job_that_is_killed_at_a_hundred_moments_goes_on(unbroken: Path, folder: Path, seed: int) -> None:
    kill_and_go_on(unbroken, folder, 5, random.Random(seed))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_job_says_how_to_go_on(unbroken: Path, folder: Path, number: signal.Signals, code: int) -> None:
    process = start_and_pause_job(folder, len(ROWS) // 3)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=patience(60))
    assert (process.returncode, output) == (code, "")
    assert "Traceback" not in errors
    if number is signal.SIGINT:
        assert f" of {len(ROWS)} rows. Run the same command again to go on." in errors
    assert not (folder / "out.jsonl").exists()
    assert start_job(folder).communicate(timeout=patience(240))[0] == ""
    assert (folder / "out.jsonl").read_bytes() == (unbroken / "out.jsonl").read_bytes()


def test_a_second_process_is_refused(unbroken: Path, folder: Path) -> None:
    first = start_and_pause_job(folder, 1)
    second = start_job(folder)
    _, errors = second.communicate(timeout=patience(60))
    assert second.returncode == 1
    assert "out.jsonl.ledger is being written by another process. Wait for it, or choose another output file." in errors
    first.send_signal(signal.SIGCONT)
    first.communicate(timeout=patience(240))
    assert (folder / "out.jsonl").read_bytes() == (unbroken / "out.jsonl").read_bytes()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets a process's limit by prlimit")
def test_a_ledger_that_may_not_grow_keeps_its_rows(unbroken: Path, folder: Path) -> None:
    import resource

    process = start_and_pause_job(folder, 1)
    limit = (unbroken / "out.jsonl.ledger").stat().st_size // 2
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, limit))
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=patience(240))
    assert process.returncode == 1
    assert "out.jsonl.ledger cannot be written (File too large). The rows before are kept: make room for it" in errors
    assert 0 < (folder / "out.jsonl.ledger").stat().st_size <= limit
    start_job(folder).communicate(timeout=patience(240))
    assert (folder / "out.jsonl").read_bytes() == (unbroken / "out.jsonl").read_bytes()
