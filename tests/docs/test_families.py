"""The families that the README and `glass models list` name are those that there are."""

from __future__ import annotations

import pytest

from glassformer.blueprints import model_types, module_for, title_of
from tests.cli.test_cli import glass
from tests.test_docs import ROOT

SHAPES = {"decoder-only": "causal", "encoder-only": "masked", "encoder-decoder": "seq2seq"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_readme_names_every_family(shape: str) -> None:
    titles = [title_of(name) for name in model_types() if module_for(name).Config.default_head == SHAPES[shape]]
    row = f"| {shape} | {', '.join(titles)} |\n"
    assert row in (ROOT / "README.md").read_text("utf-8"), f"the README's row should be:\n\n{row}"


def test_the_command_names_every_family() -> None:
    notes = " ".join(glass("models", "list").stderr.split())
    assert f"The families of models that can be opened: {', '.join(model_types())}." in notes
