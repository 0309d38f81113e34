"""docs/recurrent-layers.md: its code and its commands, on a tiny hybrid."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import run_with
from tests.see.models import folder
from tests.test_docs import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_runs(command_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = str(folder("qwen3_5_text", "causal")[0])
    names, commands = run_with(ROOT / "docs" / "recurrent-layers.md", "Qwen/Qwen3.5-0.8B", tiny)
    printed = capsys.readouterr().out
    tokens, heads = len(names["reading"].ids), 4
    assert f"({tokens}, {heads})" in printed
    assert "A layer that keeps a state has no attention weights" in printed
    assert names["pattern"].shape == (heads, tokens, tokens)
    assert len(commands) == 3
