"""Limits grow with how slow the machine is, and no test has one that does not."""

from __future__ import annotations

import ast
import os
import re
import signal
from pathlib import Path

import pytest

from tests import patience as patience_module
from tests.patience import patience, wait_until

TESTS = Path(__file__).parent
WAITS = ("wait", "join", "result", "communicate", "wait_for", "settimeout", "set_default_timeout")  # with a limit


def test_a_limit_grows_with_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience_module, "_start_slowness", lambda: 0.1)
    monkeypatch.setattr(patience_module, "_load", lambda: 0.2)
    quiet = patience(10)
    assert quiet >= 10
    monkeypatch.setattr(patience_module, "_load", lambda: 5.0)
    assert patience(10) == 5 * quiet
    monkeypatch.setattr(patience_module, "_start_slowness", lambda: 7.0)
    assert patience(10) == 7 * quiet


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="this system does not count who wants a core")
def test_the_load_is_by_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (3000.0, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert patience_module._load() == 1500


def test_a_condition_is_waited_for_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([False, False, True])
    wait_until(lambda: next(states), pause=0)
    monkeypatch.setattr(patience_module, "slowness", lambda: 0.0)
    with pytest.raises(AssertionError, match="in time"):
        wait_until(lambda: False)


def test_ctrl_c_is_heard_in_the_background_too() -> None:
    """A shell has what it starts there ignore it, and every process begun from that."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def seconds(node: ast.expr | None) -> float:
    return float(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else 0.0


def fixed_limits(path: Path) -> list[str]:
    """Where a file has a limit of a second or more as a plain number; a shorter one is meant to pass."""
    found: list[str] = []
    text = path.read_text("utf-8")
    if not re.search(rf"timeout|monotonic|\.({'|'.join(WAITS)})\(", text):
        return found
    for node in ast.walk(ast.parse(text)):
        limits: list[ast.expr] = []
        if isinstance(node, ast.Call):
            limits = [word.value for word in node.keywords if word.arg in ("timeout", "timeout_s")]
            if isinstance(node.func, ast.Attribute) and node.func.attr in WAITS:
                limits += node.args[-1:]
        elif isinstance(node, ast.BinOp) and "monotonic()" in ast.unparse(node.left):
            limits = [node.right]
        found += [f"{path.relative_to(TESTS)}, line {limit.lineno}" for limit in limits if seconds(limit) >= 1]
    return found


def test_no_limit_is_a_plain_number() -> None:
    files = [path for path in TESTS.rglob("*.py") if path.parent.name != "gpu"]  # a real GPU's are its own
    assert [place for path in files for place in fixed_limits(path)] == [], "write patience(seconds)"


def test_a_plain_number_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.TESTS", tmp_path)
    code = "run(x, timeout=60)\nx.wait(5)\nx.wait(0.1)\nend = time.monotonic() + 30\nx.wait(patience(5))\nx.join(', ')\n"
    (tmp_path / "a.py").write_text(code)
    assert fixed_limits(tmp_path / "a.py") == ["a.py, line 1", "a.py, line 2", "a.py, line 4"]
