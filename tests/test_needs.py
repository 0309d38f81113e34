"""Which tests a run leaves out, by what they need, and what it says of that at its end."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest

from tests import costs, needs

ROOT = Path(__file__).parents[1]
QUICK, FULL = "not (sweep or needs)", "needs and not sweep"


def test_every_need_is_registered() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]["ini_options"]
    assert {*needs.NEEDS, needs.ANY, "sweep"} <= {line.partition(":")[0] for line in settings["markers"]}
    assert {*needs.LIBRARIES.values(), *needs.FIXTURES.values(), *needs.PARAMETERS.values()} <= set(needs.NEEDS)


def test_two_commands_run_every_test_that_is_no_sweep_once() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert f'-m "{QUICK}"' in makefile
    assert f'-m "{FULL}"' in makefile
    for sweep, need in product((False, True), repeat=2):
        chosen = [bool(eval(expression, {}, {"sweep": sweep, "needs": need})) for expression in (QUICK, FULL)]
        assert sum(chosen) == (not sweep)


@pytest.mark.parametrize(
    ("expression", "marks", "possible"),
    [
        (QUICK, (), True),
        (QUICK, ("docs",), False),
        (QUICK, ("sweep",), False),
        (FULL, ("docs",), True),
        (FULL, (), True),  # a test of the file may be marked by hand
        ("not sweep", ("browser",), True),
        ("not sweep", ("sweep",), False),
        ("browser", ("docs",), True),
        ("browser and not docs", ("docs",), False),
        ("every_family", ("docs",), True),
        ("", ("sweep", "docs"), True),
    ],
)
def test_whether_a_run_may_choose_a_file(expression: str, marks: tuple[str, ...], possible: bool) -> None:
    assert needs.may_choose(expression, *marks) is possible


def test_folders_and_files_say_what_their_tests_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "ROOT", tmp_path)
    sources = {
        "pages/__init__.py": "import pytest\n\npytestmark = pytest.mark.docs\n",
        "pages/inner/test_page.py": "from playwright.sync_api import Page\n",
        "test_line.py": "pytestmark = [pytest.mark.skipif(True, reason=''), pytest.mark.processes]\n",
        "test_lines.py": "pytestmark = [\n    pytest.mark.sweep,\n    pytest.mark.clients,\n]\n\n@pytest.mark.docs\n",
        "test_nothing.py": "def test_later():\n    import openai\n",
    }
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {name: needs.of_place(tmp_path / name) for name in sources}
    assert found == {
        "pages/__init__.py": {"docs"},
        "pages/inner/test_page.py": {"browser", "docs"},
        "test_line.py": {"processes"},
        "test_lines.py": {"clients"},
        "test_nothing.py": set(),
    }
    assert needs.of_place(Path("elsewhere/studio/test_page.py")) == set()


def test_what_a_run_says_at_its_end() -> None:
    workers = [
        {"files": {"docs": 2}, "tests": {"docs": 1, "browser": 3}, "slow": {"a": 6.0}, "processes": {}},
        {"files": {"docs": 2}, "tests": {"docs": 1, "browser": 3}, "slow": {"b": 7.25}, "processes": {"c": 0.5}},
    ]
    assert costs.summary(workers) == [
        "Unmarked tests of more than 5 s of processor time (make them quicker, or sweeps):",
        "    7.2 s  b",
        "    6.0 s  a",
        "Unmarked tests that started processes (mark them processes, or do it in this one):",
        "    0.5 s  c",
        "Left out: browser (3 tests), docs (2 files and 1 test). Run them: make test-full; one of them: pytest -m NAME",
    ]
    assert costs.summary([{"files": {}, "tests": {}, "slow": {}, "processes": {}}]) == []


TESTS = """
import pytest

@pytest.mark.processes
def test_marked():
    pass

@pytest.mark.parametrize("executor", ["gpu", "cpu"])
def test_executors(executor):
    pass

@pytest.fixture
def open_page():
    pass

def test_page(open_page):
    pass
"""


@pytest.mark.processes
def test_a_run_leaves_out_what_needs_something(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), "-n", "2"]
    command = [sys.executable, "-m", "pytest", *options, "-m", QUICK, str(tmp_path / "test_some.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "Left out: browser (1 test), interpreter (1 test), processes (1 test). Run them: make test-full" in done.stdout
