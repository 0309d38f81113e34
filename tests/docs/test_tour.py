"""docs/tour: every command and every block of Python is run, page by page in order, and its output is what the page shows.

A `text` block shows the output of the block above it. It may leave lines out, with `…` on a line of its own, and parts of a
line, with `…` inside it, as it must for times. Words and whole numbers are compared exactly, fractions roughly: their last
digits depend on the processor. So do ranks beyond the first ten, where tokens stand close together: the share of them that
change places is about the share by which a probability changes. And so do percentages, though they are shown without a
fraction; one of 1% may be shown as nothing. Shades, bars and the width of spaces are not compared.

`sh qwen3` runs on a tiny Qwen3. `floats` in a mark: on the unquantized model, which is slow; `make test` runs those commands
on the tiny model, and `make test-all` as they are. `sh slow` is for `make test-all` alone.
"""

from __future__ import annotations

import io
import math
import re
import shlex
from collections.abc import Collection, Iterator
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from glassformer.ground.files import home
from tests.docs.pages import BLOCK, glass
from tests.test_docs import TOUR

PAGES = sorted(TOUR.glob("*.md"))
CHAPTERS = [page for page in PAGES if page.name != "README.md"]
MARKS = {"sh", "python", "text", "sh qwen3", "sh floats", "python floats", "sh slow"}
SLOW = ("sh floats", "python floats", "sh slow")
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?"
SHADES = str.maketrans(dict.fromkeys("█▓▒░·─│", " "))


def blocks(page: Path) -> Iterator[tuple[str, str, str | None]]:
    """Each block's mark and text, and the output that the page shows for it, if any."""
    pairs = BLOCK.findall(page.read_text("utf-8"))
    for (mark, text), (next_mark, output) in zip(pairs, [*pairs[1:], ("", "")], strict=False):  # a page may have none
        yield mark, text, output if next_mark == "text" else None


SLOW_PAGES = [page for page in CHAPTERS if any(mark in SLOW for mark, _, _ in blocks(page))]


def commands(text: str) -> list[str]:
    """The commands of a block, each on its line; a comment behind one is not part of it."""
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def words(line: str) -> str:
    return " ".join(re.sub(r"(?<!\S)-?1%", "", line.translate(SHADES)).split())


def same_number(actual: str, expected: str, whole: bool = True) -> bool:
    """Whole numbers must be equal; fractions, ranks and percents within two hundredths, or two of a last digit."""
    value, target = (float(number.replace(",", "")) for number in (actual, expected))
    if not whole and "." not in actual + expected:
        return abs(value - target) <= math.ceil(0.02 * target)
    if actual == expected or not ("." in actual and "." in expected):
        return actual == expected
    digits = expected.partition("e")[0].partition(".")[2]
    last = 0.0 if "e" in expected else 10.0 ** -len(digits)
    return abs(value - target) <= 0.02 * abs(target) + 2 * last


def rank_columns(line: str) -> set[int]:
    """Where the columns of ranks end, if a line is the head of a table that has some."""
    return {column.end() for column in re.finditer(r"(?<!\S)rank\S*(?: \S+)*", line)}


def same_line(actual: str, expected: str, ranks: Collection[int] = ()) -> bool:
    """Whether a printed line is the page's; `ranks`: where on the page's line ranks end."""
    at_ranks = [number[0] for number in re.finditer(NUMBER, expected) if number.end() in ranks and float(number[0]) > 10]
    actual, expected = words(actual), words(expected)
    found = [
        (number[0], not (expected.startswith("%", number.end()) or number[0] in at_ranks))
        for number in re.finditer(NUMBER, expected)
    ]
    parts = enumerate(re.split(f"( ?… ?|{NUMBER})", expected))  # every second part is what it was split at
    patterns = [".*" if "…" in part else f"({NUMBER})" if at % 2 else re.escape(part) for at, part in parts]
    match = re.fullmatch("".join(patterns), actual)
    return match is not None and all(same_number(one, *other) for one, other in zip(match.groups(), found, strict=True))


def check_output(printed: str, expected: str) -> None:
    """Check what was printed against what a page shows."""
    lines = [line for line in printed.splitlines() if line.strip()]
    at, skip, ranks = 0, False, set[int]()
    for line in expected.splitlines():
        if not line.strip():
            continue
        ranks = rank_columns(line) or ranks
        if line.strip() == "…":
            skip = True
            continue
        places = range(at, len(lines)) if skip else range(at, min(at + 1, len(lines)))
        match = next((place for place in places if same_line(lines[place], line, ranks)), None)
        assert match is not None, f"the page shows\n{line}\nbut this was printed:\n" + "\n".join(lines[at:])
        at, skip = match + 1, False
    assert skip or at == len(lines), "the page leaves out, without a word:\n" + "\n".join(lines[at:])


def python(text: str, names: dict[str, Any], page: Path) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(text, f"{page.name}: {text.splitlines()[0]}", "exec"), names)
    return printed.getvalue()


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_chapter(page: Path, smollm2: Path, command_folder: Path, request: pytest.FixtureRequest) -> None:
    names: dict[str, Any] = {}
    for mark, text, expected in blocks(page):
        if mark in ("sh qwen3", "sh floats"):
            tiny = str(request.getfixturevalue("tiny_qwen3"))
            for line in commands(text):
                glass(re.sub(r"\b(qwen3-0\.6b|floats)\b", shlex.quote(tiny), line))
            continue
        if mark not in ("sh", "python"):
            continue
        printed = "".join(map(glass, commands(text))) if mark == "sh" else python(text, names, page)
        if expected is not None:
            check_output(printed, expected)


@pytest.mark.sweep
@pytest.mark.parametrize("page", SLOW_PAGES, ids=lambda page: page.stem)
def test_slow_blocks(page: Path, smollm2: Path, command_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a home of its own, so that what is packed goes with it."""
    own = command_folder / "home"
    own.mkdir()
    for path in home().iterdir():
        if path.name not in ("packed", "tiles"):
            (own / path.name).symlink_to(path)
    monkeypatch.setenv("GLASS_HOME", str(own))
    names: dict[str, Any] = {}
    for mark, text, expected in blocks(page):
        if mark in SLOW:
            printed = "".join(map(glass, commands(text))) if mark.startswith("sh") else python(text, names, page)
            if expected is not None:
                check_output(printed, expected)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_is_run_or_compared(page: Path) -> None:
    """And every command is one of ours."""
    marks = [mark for mark, _, _ in blocks(page)]
    assert set(marks) <= MARKS
    assert page.read_text("utf-8").count("```") == 2 * len(marks)
    for mark, text, _ in blocks(page):
        if mark.startswith("sh"):
            assert all(line.rpartition(" | ")[2].startswith("glass ") for line in commands(text))


@pytest.mark.parametrize(
    ("expected", "same"),
    [
        ("one  24.2%  █████\n34 ms\nend", True),
        ("one 24.3% ██\n… ms\nend", True),
        ("one 24.2%\n…", True),
        ("…\nend", True),
        ("one 26.2%\n…", False),  # too far off
        ("one 24.2%\n34 ms\nend 1%", True),  # which may be shown as nothing
        ("one 25%\n…", False),  # shown with a fraction
        ("one 24.2%\n35 ms\nend", False),  # another whole number
        ("one 24.2%\nend", False),  # a line left out
        ("one 24.2%", False),
        ("two 24.2%\n…", False),
        ("…\nend\n34 ms", False),  # in another order
    ],
)
def test_check_output(expected: str, same: bool) -> None:
    printed = "one  24.2%  ████\n\n34 ms\nend\n"
    if same:
        check_output(printed, expected)
        return
    with pytest.raises(AssertionError, match="the page"):
        check_output(printed, expected)


@pytest.mark.parametrize(("rank", "same"), [(56, True), (54, True), (53, True), (52, False), (10, False)])
def test_ranks_beyond_the_first_ten_may_change_places(rank: int, same: bool) -> None:
    head = "   token  rank of a  neuron\n"
    with nullcontext() if same else pytest.raises(AssertionError, match="the page"):
        check_output(f"{head}1  a      {rank:9}      34", f"{head}1  a             55      34")
    with pytest.raises(AssertionError, match="the page"):  # the number of a neuron may not
        check_output(f"{head}1  a             55      34", f"{head}1  a             55      35")


def test_percents_without_a_fraction_may_be_rounded_otherwise() -> None:
    check_output("layer 21  █100%  1%  -3%", "layer 21  █101%      -4%")
    with pytest.raises(AssertionError, match="the page"):
        check_output("layer 21  █100%", "layer 21  █104%")


def test_start_page_rows_stand_in_their_chapters() -> None:
    """Each command and call of the start page stands in the chapter that it leads to; every chapter is there, in order."""
    row = re.compile(r"^\| .+ \| `(.+)` \| `(.+)` \| \[\d+\]\((.+\.md)\) \|$", re.M)
    rows = row.findall((TOUR / "README.md").read_text("utf-8"))
    assert list(dict.fromkeys(page for _, _, page in rows)) == [page.name for page in CHAPTERS]
    for command, call, page in rows:
        run = [(mark.split()[0], text) for mark, text, _ in blocks(TOUR / page)]
        lines = [line for mark, text in run if mark == "sh" for line in commands(text)]
        assert any(command.replace("\\|", "|") in line for line in lines), command
        assert any(call in text for mark, text in run if mark == "python"), call
