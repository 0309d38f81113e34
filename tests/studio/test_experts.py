"""The studio's view of a mixture of experts: who went where, and that it is there for such models alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

import glassformer
from glassformer.see.recording import CANDIDATES
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import experts_source, make, serving
from tests.studio.browser import OpenPage

__all__ = ["experts_source", "make"]
TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def address(experts_source: ModelSource, tiny_qwen3: Path) -> Iterator[str]:
    limits = Limits(seconds=300, stop_seconds=1, new_tokens=6)
    dense = ModelSource("dense", partial(glassformer.load, tiny_qwen3))
    with serving(create_app(Registry([experts_source, dense], limits), limits)) as address:
        yield address


def test_each_cell_is_the_expert_with_the_largest_share(
    open_page: OpenPage, address: str, experts_source: ModelSource
) -> None:
    view = experts_source.load().read(TEXT, raw=True).experts()
    page = open_page().page
    page.goto(f"{address}/#view=experts&text={TEXT.replace(' ', '%20')}&layer=2&position=3")
    grid = page.get_by_role("grid")
    grid.wait_for()
    for row, layer in enumerate(view.layers):
        for column, token in enumerate(layer.tokens):
            cell = grid.locator(f'[data-row="{row}"][data-column="{column}"]')
            expect(cell).to_have_text(str(token[0].expert))
    chosen = page.get_by_role("region", name="The experts of the selected token")
    for choice in view.layers[1].tokens[3]:
        expect(chosen.get_by_text(f"expert {choice.expert}", exact=False).first).to_be_visible()
    loads = page.get_by_role("list", name="Tokens of each expert").get_by_role("listitem")
    assert loads.count() == view.experts
    for load in view.layers[1].loads:
        words = f"expert {load.expert}: {load.tokens} of {len(view.tokens)} tokens"
        expect(loads.nth(load.expert)).to_have_attribute("title", pattern(words))


def test_the_view_is_offered_for_models_with_experts_alone(
    open_page: OpenPage, address: str, experts_source: ModelSource, tmp_path: Path
) -> None:
    page = open_page()
    page.show(address)  # the run that is shipped, of a model without
    button = page.page.get_by_role("navigation", name="Views").get_by_role("button", name="Experts")
    expect(button).to_have_count(0)
    run = experts_source.load().watch("the cat", max_new_tokens=2, eos_token_id=None, look=CANDIDATES)
    page.drop(run.recording.save(tmp_path / "run.json"))
    expect(button).to_have_count(1)
    assert page.complaints == []


def pattern(beginning: str) -> re.Pattern[str]:
    return re.compile(f"^{re.escape(beginning)},")
