"""400 mutated inputs for every parser in the ordinary tests, 100,000 with the sweeps: a value or one of our errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
QUICK, MANY = 400, 100_000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits on time and memory are set by POSIX calls")


def outcome(name: str, first: int, count: int, folder: Path) -> dict[str, Any]:
    """What came of a range of cases, each in a process that may be ended by them."""
    case = folder / "case"
    environment = {**os.environ, "FUZZ_CASE": str(case), "GLASS_THREADS": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", name, str(first), str(count)],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    at = case.read_text() if case.exists() else "none"
    assert done.returncode == 0, f"{name}: ended with {done.returncode} at case {at.strip()}: {done.stderr[-2000:]}"
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def forked() -> Iterator[Callable[[str, int, int, Path], dict[str, Any]]]:
    """Answers of processes that one forks: of a start, which takes longer than 400 cases, there is only one."""
    environment = {**os.environ, "GLASS_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fuzz", "--fork"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, status = process.stdin, process.stdout

        def ask(name: str, first: int, count: int, folder: Path) -> dict[str, Any]:
            print(json.dumps([name, first, count, str(folder)]), file=asked, flush=True)
            ended = status.readline().strip()
            case, said = ((folder / file).read_text() if (folder / file).exists() else "" for file in ("case", "stderr"))
            assert ended == "0", f"{name}: ended with {ended} at case {case.strip() or 'none'}: {said[-2000:]}"
            answer: dict[str, Any] = json.loads((folder / "outcome").read_text())
            return answer

        yield ask
        asked.close()


def check(name: str, count: int, result: dict[str, Any]) -> None:
    assert not result["failures"], "\n".join(f"{name} {number}: {reason}" for number, reason in result["failures"])
    assert result["accepted"] + result["refused"] == count
    assert result["accepted"] > count // 100  # what is read is reached
    assert result["refused"] > count // 100 or not result["refuses"]
    print(f"{name}: {count} cases, {result['accepted']} accepted, {result['refused']} refused")


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_inputs(name: str, forked: Callable[[str, int, int, Path], dict[str, Any]], tmp_path: Path) -> None:
    check(name, QUICK, forked(name, 0, QUICK, tmp_path))


@pytest.mark.sweep
@pytest.mark.parametrize("name", TARGETS)
def test_many_mutated_inputs(name: str, tmp_path: Path) -> None:
    check(name, MANY, outcome(name, QUICK, MANY, tmp_path))
