"""docs/recurrent-layers.md: its code and its commands, on a tiny hybrid."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from glassformer.cli.app import app
from tests.see.models import folder
from tests.test_docs import ROOT, blocks

PAGE = ROOT / "docs" / "recurrent-layers.md"
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text("utf-8"), re.S | re.M)
COMMANDS = [line for mark, block in FENCED if not mark for line in block.splitlines()]

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_runs(command_folder: Any, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = str(folder("qwen3_5_text", "causal")[0])
    names: dict[str, Any] = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block.replace('"Qwen/Qwen3.5-0.8B"', repr(tiny)), str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    tokens, heads = len(names["reading"].ids), 4
    assert f"({tokens}, {heads})" in printed
    assert "A layer that keeps a state has no attention weights" in printed
    assert names["pattern"].shape == (heads, tokens, tokens)
    assert len(COMMANDS) == 3
    for command in COMMANDS:
        name, *words = shlex.split(command)
        assert name == "glass"
        done = CliRunner().invoke(app, [*words, "-m", tiny])
        assert done.exit_code == 0, (command, done.output, done.exception)
        assert done.stdout.strip()
