"""docs/features.md: its files, commands and Python."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.checkpoint.locate import SHIPPED_MODELS
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
    assert len(COMMANDS) == 11
    for command in COMMANDS:
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert done.stdout
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, str(PAGE), "exec"), names)
        assert capsys.readouterr().out


def test_the_published_figures_are_those_that_were_measured() -> None:
    facts = json.loads((SHIPPED_MODELS / "smollm2" / "sight.json").read_text("utf-8"))
    for name, measured in facts["dictionaries"].items():
        figures = measured["active"], measured["later_explained_variance"], measured["loss_recovered"]
        assert f"| `{name}` |" in TEXT
        assert "| {:.1f} | {:.1%} | {:.1%} |".format(*figures) in TEXT
    assert f"{facts['tokens']:,} tokens of {facts['texts'] - facts['held_out']:,} texts" in TEXT
    assert f"of the {facts['held_out']} texts" in TEXT
    bits, (plain, tuned) = (PAGE.parent / "many-texts.md").read_text("utf-8"), facts["lens"]["held_out_bits"].values()
    for block in (0, 8, 15, 23, 28):
        assert f"| {block} | {plain[block + 1]:.1f} | {tuned[block + 1]:.1f} |" in bits
