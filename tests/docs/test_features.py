"""docs/features.md: its files, commands and Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "features.md"
TEXT = PAGE.read_text("utf-8")
FILES = dict(re.findall(r"```jsonl file=(\S+)\n(.*?)```", TEXT, re.S))
COMMANDS = [line for block in re.findall(r"```\n(glass .*?)```", TEXT, re.S) for line in block.splitlines()]
CORPUS = "The cat sat on the mat. Paris is the capital of France, and Rome is the capital of Italy. " * 4


def test_the_page_runs(smollm2: Path, command_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in FILES.items():
        Path(name).write_text(content, "utf-8")
    Path("corpus.txt").write_text(CORPUS, "utf-8")
    assert len(COMMANDS) == 8
    for command in COMMANDS:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert done.stdout
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, str(PAGE), "exec"), names)
        assert capsys.readouterr().out
