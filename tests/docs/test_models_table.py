"""docs/models.md says what the families say: `python tools/model_table.py` writes it."""

from __future__ import annotations

import pytest

from glassformer.blueprints import model_types
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
