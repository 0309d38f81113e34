"""docs/tour: every command and every block of Python is run, page by page in order, and what is shown is what came.

A `text` block shows what the block above it gave. It may leave lines out, with `…` on a line of its own, and parts of a
line, with `…` inside it, as it must for times. Words and whole numbers are compared, fractions roughly: their last digits
are the processor's. Shades, bars and the width of blanks are not compared.

`sh qwen3` runs on a tiny Qwen3. `floats` in a mark: of the model as floats, which takes its time; `make test` runs those
commands on the tiny model, and `make test-all` all of it as it stands.
"""

from __future__ import annotations

import io
import logging
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from glassformer.checkpoint.locate import home
from glassformer.cli.app import app
from tests.docs.pages import BLOCK
from tests.test_docs import TOUR

PAGES = sorted(TOUR.glob("*.md"))
CHAPTERS = [page for page in PAGES if page.name != "README.md"]
MARKS = {"sh", "python", "text", "sh qwen3", "sh floats", "python floats"}
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?"
SHADES = str.maketrans(dict.fromkeys("█▓▒░·─", " "))


def blocks(page: Path) -> Iterator[tuple[str, str, str | None]]:
    """Each block's mark and text, and what is shown of what it gives, if something is."""
    found = BLOCK.findall(page.read_text("utf-8"))
    for (mark, text), (after, told) in zip(found, [*found[1:], ("", "")], strict=False):  # a page may have none
        yield mark, text, told if after == "text" else None


FLOATS = [page for page in CHAPTERS if any("floats" in mark for mark, _, _ in blocks(page))]


def commands(text: str) -> list[str]:
    """The commands of a block, each on its line; a comment behind one is not part of it."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def words(line: str) -> str:
    return " ".join(line.translate(SHADES).split())


def near(said: str, told: str) -> bool:
    """Whether a number is the page's: whole ones exactly, fractions within two hundredths or two of their last digit."""
    if said == told or not ("." in said and "." in told):
        return said == told
    one, other = (float(number.replace(",", "")) for number in (said, told))
    digits = told.partition("e")[0].partition(".")[2]
    last = 0.0 if "e" in told else 10.0 ** -len(digits)
    return abs(one - other) <= 0.02 * abs(other) + 2 * last


def alike(said: str, told: str) -> bool:
    """Whether a line is the page's."""
    said, told = words(said), words(told)
    numbers = re.findall(NUMBER, told)
    parts = re.split(f"( ?… ?|{NUMBER})", told)
    kinds = [".*" if "…" in part else f"({NUMBER})" if number else re.escape(part) for part, number in marked(parts)]
    found = re.fullmatch("".join(kinds), said)
    return found is not None and all(near(*pair) for pair in zip(found.groups(), numbers, strict=True))


def marked(parts: list[str]) -> Iterator[tuple[str, bool]]:
    """What `re.split` gave: every second part is what it was split at."""
    for place, part in enumerate(parts):
        yield part, place % 2 == 1


def shown(printed: str, told: str) -> None:
    """Check what a page shows against what came."""
    lines = [line for line in printed.splitlines() if line.strip()]
    at, skip = 0, False
    for line in told.splitlines():
        if not line.strip():
            continue
        if line.strip() == "…":
            skip = True
            continue
        places = range(at, len(lines)) if skip else range(at, min(at + 1, len(lines)))
        found = next((place for place in places if alike(lines[place], line)), None)
        assert found is not None, f"the page shows\n{line}\nbut this came:\n" + "\n".join(lines[at:])
        at, skip = found + 1, False
    assert skip or at == len(lines), "the page leaves out, without a word:\n" + "\n".join(lines[at:])


def glass(line: str) -> str:
    """What a command gives, notes included; `printf '…' |` before it is what it reads."""
    typed, _, command = line.rpartition(" | ")
    given = shlex.split(typed)[1].encode().decode("unicode_escape") if typed else None
    first, *rest = shlex.split(command, comments=True)
    assert first == "glass", line
    done = CliRunner().invoke(app, rest, input=given)
    assert done.exit_code == 0, (line, done.output, done.exception)
    assert done.stdout.strip(), line
    return done.output


def python(text: str, names: dict[str, Any], page: Path) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, f"{page.name}: {text.splitlines()[0]}", "exec"), names)
    return printed.getvalue()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, a terminal of 80 columns; and the library's notes go afterwards where they went before."""
    notes = logging.getLogger("glassformer")
    handlers, propagate = notes.handlers[:], notes.propagate
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("GLASS_MODEL", raising=False)
    yield tmp_path
    notes.handlers[:], notes.propagate = handlers, propagate


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_chapter(page: Path, smollm2: Path, place: Path, request: pytest.FixtureRequest) -> None:
    names: dict[str, Any] = {}
    for mark, text, told in blocks(page):
        if mark in ("sh qwen3", "sh floats"):
            tiny = str(request.getfixturevalue("tiny_qwen3"))
            for line in commands(text):
                glass(re.sub(r"\b(qwen3-0\.6b|floats)\b", shlex.quote(tiny), line))
            continue
        if mark not in ("sh", "python"):
            continue
        printed = "".join(map(glass, commands(text))) if mark == "sh" else python(text, names, page)
        if told is not None:
            shown(printed, told)


@pytest.mark.sweep
@pytest.mark.parametrize("page", FLOATS, ids=lambda page: page.stem)
def test_floats(page: Path, smollm2: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a home of its own, so that what is packed goes with it."""
    own = place / "home"
    own.mkdir()
    for one in home().iterdir():
        if one.name not in ("packed", "tiles"):
            (own / one.name).symlink_to(one)
    monkeypatch.setenv("GLASS_HOME", str(own))
    names: dict[str, Any] = {}
    for mark, text, told in blocks(page):
        if "floats" in mark:
            printed = "".join(map(glass, commands(text))) if mark.startswith("sh") else python(text, names, page)
            if told is not None:
                shown(printed, told)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_nothing_is_left_out(page: Path) -> None:
    """Every block is of a kind that is run or compared, and every command is one of ours."""
    marks = [mark for mark, _, _ in blocks(page)]
    assert set(marks) <= MARKS
    assert page.read_text("utf-8").count("```") == 2 * len(marks)
    for mark, text, _ in blocks(page):
        if mark.startswith("sh"):
            assert all(line.rpartition(" | ")[2].startswith("glass ") for line in commands(text))


@pytest.mark.parametrize(
    ("told", "same"),
    [
        ("one  24.2%  █████\n34 ms\nend", True),
        ("one 24.3% ██\n… ms\nend", True),
        ("one 24.2%\n…", True),
        ("…\nend", True),
        ("one 26.2%\n…", False),  # too far off
        ("one 24.2%\n35 ms\nend", False),  # another whole number
        ("one 24.2%\nend", False),  # a line left out
        ("one 24.2%", False),
        ("two 24.2%\n…", False),
        ("…\nend\n34 ms", False),  # in another order
    ],
)
def test_what_counts_as_shown(told: str, same: bool) -> None:
    printed = "one  24.2%  ████\n\n34 ms\nend\n"
    if same:
        shown(printed, told)
        return
    with pytest.raises(AssertionError, match="the page"):
        shown(printed, told)


def test_the_table_is_of_what_is_run() -> None:
    """Each command and call of the start page stands in the chapter that it leads to; every chapter is there, in order."""
    row = re.compile(r"^\| .+ \| `(.+)` \| `(.+)` \| \[\d+\]\((.+\.md)\) \|$", re.M)
    rows = row.findall((TOUR / "README.md").read_text("utf-8"))
    assert list(dict.fromkeys(page for _, _, page in rows)) == [page.name for page in CHAPTERS]
    for command, call, page in rows:
        run = [(mark.split()[0], text) for mark, text, _ in blocks(TOUR / page)]
        lines = [line for mark, text in run if mark == "sh" for line in commands(text)]
        assert any(command.replace("\\|", "|") in line for line in lines), command
        assert any(call in text for mark, text in run if mark == "python"), call
