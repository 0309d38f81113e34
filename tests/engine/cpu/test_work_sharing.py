"""How threads share the steps of a pass (native/work_sharing.h): native/work_sharing_test.cpp, built and run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from glassformer.engine.cpu import build

pytestmark = pytest.mark.processes

SOURCE = Path(__file__).with_name("native") / "work_sharing_test.cpp"


def program(folder: Path, compiler: Sequence[str], *flags: str) -> Path:
    path = folder / "work_sharing_test"
    command = [*compiler, *build.COMMON, *flags, f"-I{build.NATIVE}", str(SOURCE), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_every_piece_is_run_once_and_seen_by_the_next_step(tmp_path: Path, compiler: list[str]) -> None:
    path = program(tmp_path, compiler)
    for threads in (1, 2, 3, 8, 17):  # in one group, and in several
        finished = subprocess.run([path, str(threads), "100"], capture_output=True, text=True)
        assert (finished.stdout, finished.stderr) == ("all is well\n", "")


@pytest.mark.sweep
@pytest.mark.parametrize("sanitizers", ["thread", "address,undefined"])
def test_work_sharing_with_sanitizers(tmp_path: Path, compiler: list[str], sanitizers: str) -> None:
    path = program(tmp_path, compiler, "-O1", "-g1", "-fno-sanitize-recover=all", f"-fsanitize={sanitizers}")
    for threads in (2, 5, 9):
        finished = subprocess.run([path, str(threads), "200"], capture_output=True, text=True)
        assert (finished.stdout, finished.stderr) == ("all is well\n", "")
