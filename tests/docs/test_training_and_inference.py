"""docs/training-and-inference.md: its commands run, and its code prints what stands below it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from tests.docs.test_training import BOOK, SMALL
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "training-and-inference.md"
TEXT = PAGE.read_text("utf-8")
COMMANDS = [line for block in re.findall(r"```\n(glass .*?)```", TEXT, re.S) for line in block.splitlines()]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_its_commands_and_its_code(command_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command_folder / "book.txt").write_text(BOOK)
    assert len(COMMANDS) == 6
    for line in COMMANDS:
        done = CliRunner().invoke(app, [*shlex.split(line)[1:], *(SMALL if line.startswith("glass train") else ())])
        assert done.exit_code == 0, (line, done.output, done.exception)
    names: dict[str, Any] = {}
    printed = []
    capsys.readouterr()
    for code in blocks(PAGE, "python"):
        exec(compile(code, str(PAGE), "exec"), names)
        printed.append(capsys.readouterr().out)
    assert printed[0] == ""
    assert printed[1:] == blocks(PAGE, "text")


def test_every_row_of_the_table_leads_to_where_it_is_shown() -> None:
    anchors = {
        re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^## (.*)$", TEXT, re.M)
    }
    links = re.findall(r"\]\(#([^)]+)\)", TEXT)
    assert len(links) == 6
    assert set(links) <= anchors
