"""Parameters of the sweeps: marked where sweeps may be run, and not made where they are left out."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests import sweeps


@pytest.mark.parametrize("marks", ["", "sweep", "not slow"])
def test_parameters_of_sweeps_are_marked(marks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_wanted", False)
    sweeps.choose(marks)
    (one,) = sweeps.swept([(1, "a")])
    assert (one.values, one.marks) == (((1, "a"),), (pytest.mark.sweep,))
    quick, other = sweeps.mostly_swept([(1, "a"), (2, "b")], (1, "a"))
    assert quick == (1, "a")
    assert sweeps.examples(5, 20) == 20
    assert (other.values, other.marks) == ((2, "b"), (pytest.mark.sweep,))


def test_a_run_without_sweeps_makes_only_the_quick_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_wanted", True)
    sweeps.choose("not sweep")
    assert sweeps.swept([1, 2]) == []
    assert sweeps.mostly_swept([1, 2, 3], 3, 1) == [1, 3]
    assert sweeps.examples(5, 20) == 5


def test_each_value_is_in_one_of_a_few_combinations() -> None:
    axes = (range(6), "ab", ("x", "y", "z"))
    combinations = {one: set(enumerate(one)) for one in product(*axes)}
    kept = sweeps.covering(combinations)
    assert len(kept) == 6
    assert [{one[at] for one in kept} for at in range(3)] == [set(axis) for axis in axes]
    assert sorted(one[1] for one in kept) == [*"aaabbb"]  # none in more than its share
    assert sorted(one[2] for one in kept) == [*"xxyyzz"]
    rows = {(family, site): {(family, site)} for family, site in [("t5", 1), ("t5", 2), ("bert", 1)]}
    assert sweeps.covering(rows) == set(rows)  # values that are given together are one


COMBINED = """
import pytest

@pytest.fixture(params=["plain", "cpu"])
def executor(request):
    return request.param

@pytest.mark.parametrize(("text", "size"), [("a", 1), ("a", 2), ("b", 1)])
def test_some(executor, text, size):
    pass

@pytest.fixture(params=[(family, executor) for family in ("llama", "gpt2", "t5") for executor in ("plain", "cpu")])
def pair(request):
    return request.param

def test_pairs(pair):
    pass

@pytest.mark.every_combination
@pytest.mark.parametrize("text", ["a", "b"])
@pytest.mark.parametrize("size", [1, 2])
def test_all(text, size):
    pass

@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_families(family):
    pass
"""


@pytest.mark.processes
def test_collected_tests_are_quick_or_sweeps(tmp_path: Path) -> None:
    (tmp_path / "test_combined.py").write_text(COMBINED)
    root = Path(__file__).parents[1]
    options = ["--collect-only", "-p", "tests.conftest", "-c", str(root / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", *options, "-m", "not sweep", str(tmp_path / "test_combined.py")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]
    tests = ("test_some", "test_all", "test_pairs")
    some, every, pairs = ({name for name in names if name.startswith(f"{test}[")} for test in tests)
    assert (len(some), len(every), len(pairs)) == (3, 4, 3)
    assert all(any(value in name for name in some) for value in ("plain", "cpu", "a-1", "a-2", "b-1"))
    assert [name for name in names if name.startswith("test_families")] == ["test_families[llama]"]
