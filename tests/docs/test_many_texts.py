"""docs/many-texts.md: its code and its commands, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import run_with
from tests.see.models import folder
from tests.test_docs import ROOT

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_runs(command_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, commands = run_with(ROOT / "docs" / "many-texts.md", "smollm2", str(folder("gpt2", "causal")[0]))
    printed = capsys.readouterr().out
    assert "16 texts" in printed
    assert "(64, 48)" in printed
    assert "held-out accuracy" in printed
    assert "tuned lens, what" in printed
    assert len(commands) == 10
