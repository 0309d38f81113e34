"""docs/models.md says what the families say: `python tools/model_table.py` writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from glassformer.blueprints import model_types
from tests.docs import pages
from tests.engine.bridge import families
from tools.model_table import BRIDGE, INTRODUCTION, PAGE, TABLE, family_row

TEXT = PAGE.read_text("utf-8")
FAMILIES = [kind for kind in model_types() if kind != "scratch"]


def test_the_page_is_the_tools() -> None:
    assert all(part in TEXT for part in (INTRODUCTION, BRIDGE, TABLE)), "python tools/model_table.py"


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_familys_row(kind: str) -> None:
    assert family_row(kind) in TEXT.splitlines(), "python tools/model_table.py"


def test_no_row_is_of_a_family_that_is_gone() -> None:
    rows = [line for line in TEXT.split("## Any other model")[0].splitlines() if line.startswith("| ")]
    assert len(rows) == len(FAMILIES) + 1  # the table's head


@pytest.mark.docs
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    families.write(tmp_path / "state-spaces" / "mamba-130m-hf", "mamba", num_hidden_layers=4)
    monkeypatch.chdir(tmp_path)
    names = pages.run(PAGE, caplog)
    assert names["out_proj"].shape == (3, 32)
    changed = names["without"].read("how are you?").at("module:backbone.layers.3.mixer.out_proj")
    assert (changed == names["out_proj"]).all()  # inside of the module that gives nothing, all is as it was
