"""The first screen as a picky designer tries it: opened cold, dragged, read closely, and walked by the keyboard alone."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, expect

from glassformer.runtime.model import Model
from glassformer.serving.http.app import create_app
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience
from tests.serving.conftest import serving
from tests.studio.api import ask_with_seed, other_rank, post
from tests.studio.browser import OpenPage, StudioPage, visible
from tests.studio.conftest import LIMITS
from tests.studio.test_page import SHIPPED, STEPS

HALF_THE_OPENING = 600  # milliseconds
TABS = 80  # more than the page has stops


@pytest.fixture
def loading(sources: tuple[ModelSource, ...]) -> Iterator[tuple[str, threading.Event]]:
    """A server whose model is loaded when the event is set, and no earlier."""
    loaded, (source, *_) = threading.Event(), sources

    def load() -> Model:
        assert loaded.wait(patience(300))
        return source.load()

    with serving(create_app(Registry([ModelSource("slow", load)], LIMITS), LIMITS)) as address:
        try:
            yield address, loaded
        finally:
            loaded.set()


def test_it_opens_cold_with_real_tokens_that_move_and_can_be_clicked(
    open_page: OpenPage, loading: tuple[str, threading.Event]
) -> None:
    address, loaded = loading
    page = open_page(1440, 890, still=False)  # a window that no other test has: its clock is stopped
    page.page.clock.install(time=0)
    page.page.clock.pause_at(1000)
    page.page.goto(address)
    page.page.locator("[data-place]").first.wait_for(state="attached")
    shown = page.page.locator("[data-place].shown")
    page.page.clock.run_for(HALF_THE_OPENING)
    assert 0 < shown.count() < len(STEPS), "the opening is being written"
    expect(page.page.get_by_role("banner")).to_contain_text("being loaded…")
    assert page.value("document.getAnimations().length") == 0, "nothing spins"
    shown.first.dispatch_event("click")  # with a clock that stands still, a mouse waits for a frame that never comes
    expect(page.why.locator(".token")).to_have_text(visible(STEPS[0]["token"]["text"]))
    expect(shown).to_have_count(len(STEPS))  # input brings the opening to its end
    loaded.set()
    expect(page.page.get_by_role("banner")).not_to_contain_text("being loaded…")


def test_a_dragged_temperature_gives_what_the_api_gives(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.set_field("The seed of the next text", 11)
    page.page.get_by_role("slider", name="top-k").fill("8")  # all that stay are candidates whose path is kept
    body = page.requested(lambda: page.ask("how are you?"))
    page.wait_until_written()
    page.answer.first.click()
    chosen = page.answer.all_text_contents()
    slider = page.page.get_by_role("slider", name="temperature")
    box = slider.bounding_box()
    assert box is not None
    mouse, y = page.page.mouse, box["y"] + box["height"] / 2
    mouse.move(box["x"] + box["width"] / 2, y)
    mouse.down()
    for share in (0.05, 0.25, 0.5, 0.98):
        mouse.move(box["x"] + share * box["width"], y, steps=4)
        temperature = float(slider.input_value())
        assert temperature == pytest.approx(2 * share, abs=0.1)
        assert sum(page.bars().values()) == pytest.approx(100, abs=0.1)
        first = post(address, "record", **{**body, "temperature": temperature, "max_tokens": 1})["steps"][0]["candidates"]
        paths = zip(first["texts"], first["paths"], strict=False)  # the best ones have one
        scores = {text: path[-1] for text, path in paths if path and path[-1] is not None}
        weights = {text: math.exp(score - max(scores.values())) for text, score in scores.items()}
        for text, width in list(page.bars().items())[:8]:
            weight = next((weight for other, weight in weights.items() if visible(other) == text), 0)
            assert width == pytest.approx(100 * weight / sum(weights.values()), abs=0.1)
    mouse.up()
    assert page.selected == 0
    assert page.answer.all_text_contents() == chosen


def candidates_with(shares: list[float]) -> dict[str, Any]:
    """A shipped step whose candidates have these shares, and those after them none."""
    step = STEPS[0]
    scores = [math.log(share) for share in shares]
    scores += [-99.0] * (len(step["candidates"]["scores"]) - len(scores))
    return {**step, "tail": None, "candidates": {**step["candidates"], "scores": scores}}


def test_a_small_share_is_read_and_a_flat_choice_looks_flat(open_page: OpenPage, address: str, tmp_path: Path) -> None:
    peaked, flat = [0.95, 0.046, 0.004], [0.125] * 8
    path = tmp_path / "run.json"
    steps = [candidates_with(shares) for shares in (peaked, flat)]
    path.write_text(json.dumps({**SHIPPED, "steps": steps, "settings": {"do_sample": True, "top_k": 8}}), "utf-8")
    page = open_page()
    page.show(address)
    page.drop(path)
    expect(page.answer).to_have_count(len(steps))
    rows = page.why.locator("ol").first.locator(".row")
    for number, (shares, words) in enumerate([(peaked, ["95 %", "4.6 %", "0.4 %"]), (flat, ["13 %"] * 8)]):
        page.answer.nth(number).click()
        for rank, word in enumerate(words):
            expect(rows.nth(rank).locator(".share")).to_have_text(word)
        assert list(page.bars().values())[: len(shares)] == pytest.approx([100 * share for share in shares], abs=0.01)


def tab_to(page: StudioPage, target: Locator) -> None:
    """Press Tab until the target has the focus."""
    for _ in range(TABS):
        if target.evaluate_all("found => found.some((element) => element === document.activeElement)"):
            return
        page.page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {target}")


def test_the_keyboard_alone_leads_from_a_token_to_a_branch_a_view_and_a_file(open_page: OpenPage, address: str) -> None:
    page = open_page()
    first = ask_with_seed(page, address)
    keyboard = page.page.keyboard
    page.page.get_by_role("heading", name="glassformer").click()  # where a reader starts: nothing has the focus
    tab_to(page, page.answer.first)
    for _ in range(2):
        keyboard.press("ArrowRight")
    expect(page.answer.nth(2)).to_be_focused()
    rank = other_rank(first, 2)
    tab_to(page, page.why.locator("ol").first.get_by_role("button").nth(rank))
    keyboard.press("Enter")
    go_on = page.page.get_by_role("button", name="Go on from here")
    tab_to(page, go_on)
    page.requested(lambda: keyboard.press("Enter"))
    page.wait_until_written()
    expect(page.branch("B").first).to_have_attribute("aria-pressed", "true")
    keyboard.press("Alt+ArrowUp")
    expect(page.page.get_by_role("button", name="Branch A")).to_have_attribute("aria-pressed", "true")
    views = page.page.get_by_role("navigation", name="Views")
    tab_to(page, views.get_by_role("button", name="Tree"))
    keyboard.press("Enter")
    expect(page.page.get_by_role("region", name="The branches of this answer")).to_be_visible()
    tab_to(page, page.page.get_by_role("button", name="Save"))
    with page.page.expect_download() as download:
        keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".html")
