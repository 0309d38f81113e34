"""docs/many-texts.md: its code and its commands, on a tiny model."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from tests.see.models import folder
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "many-texts.md"
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
COMMANDS = [line for mark, block in FENCED if not mark for line in block.splitlines()]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_runs(command_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = str(folder("gpt2", "causal")[0])
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block.replace('"smollm2"', repr(tiny)), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    assert "16 texts" in printed
    assert "(64, 48)" in printed
    assert "held-out accuracy" in printed
    assert "tuned lens, what" in printed
    assert len(COMMANDS) == 10
    for command in COMMANDS:
        name, *words = shlex.split(command)
        assert name == "glass"
        done = CliRunner().invoke(app, [*words, "-m", tiny])
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert done.stdout.strip()
