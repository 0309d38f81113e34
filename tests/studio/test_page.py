"""The studio's first screen in a real browser, held against the numbers of the recording and of the server."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from playwright.sync_api import expect

from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import KEY, serving
from tests.studio.api import post
from tests.studio.browser import OpenPage, visible
from tests.studio.test_static import SOURCES

SHIPPED: dict[str, Any] = json.loads((SOURCES / "shipped-run.json").read_text("utf-8"))
STEPS = SHIPPED["steps"]
HOSTILE = '<img src=x onerror="document.title=1">'


def shares(step: dict[str, Any], temperature: float, top_k: int, top_p: float) -> list[float]:
    """The candidates' probabilities under these settings, in percent; all that stay are among those that were recorded."""
    scores = step["candidates"]["scores"][:top_k]
    weights = [math.exp((score - scores[0]) / temperature) for score in scores]
    kept: list[float] = []
    for weight in weights:
        if sum(kept) >= top_p * sum(weights):
            break
        kept.append(weight)
    return [100 * weight / sum(kept) for weight in kept]


def assert_bars(bars: dict[str, float], step: dict[str, Any], temperature: float) -> None:
    """They are the step's probabilities at a temperature, and nothing is missing."""
    settings = SHIPPED["settings"]
    assert sum(bars.values()) == pytest.approx(100, abs=0.1)
    expected = shares(step, temperature, settings["top_k"], settings["top_p"])
    for text, share in zip(step["candidates"]["texts"][:8], expected, strict=False):
        assert bars[visible(text)] == pytest.approx(share, abs=0.1)


def test_it_opens_on_the_shipped_run(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    assert page.answer.all_text_contents() == [visible(step["token"]["text"]) for step in STEPS]
    surprisals = [step["surprisal"] for step in STEPS]
    assert page.selected == surprisals.index(max(surprisals))


def test_the_opening_writes_the_run_once_more(open_page: OpenPage, address: str) -> None:
    page = open_page(still=False)
    page.show(address)
    expect(page.answer.last).to_be_visible()


def test_a_tokens_bars_are_the_probabilities_that_it_was_chosen_by(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    for number in range(0, len(STEPS), 4):
        page.answer.nth(number).click()
        assert_bars(page.bars(), STEPS[number], 1.0)


def test_the_temperature_reshapes_the_bars_and_not_the_choice(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address, "token=3")
    for temperature in (0.05, 0.5, 2):
        page.page.get_by_role("slider").first.fill(str(temperature))
        assert page.selected == 3
        assert visible(STEPS[3]["token"]["text"]) in page.bars()
        assert_bars(page.bars(), STEPS[3], temperature)


def test_top_k_removes_candidates_and_is_sent(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address, "token=3")
    page.page.get_by_role("slider", name="top-k").fill("2")
    best = [visible(text) for text in STEPS[3]["candidates"]["texts"][:2]]
    bars = page.bars()
    assert sum(bars[text] for text in best) == pytest.approx(100, abs=0.1)
    page.why.locator("ol").first.locator(".row").nth(2).click()
    expect(page.why).to_contain_text("top-k 2 removed")
    expect(page.why).to_contain_text(f"The run had temperature 1, top-k {SHIPPED['settings']['top_k']} and top-p 0.95.")
    assert page.requested(lambda: page.ask("hi"))["top_k"] == 2
    page.wait_until_written()


def test_a_text_is_written_as_the_models_own_settings_say_until_others_are_set(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    own = post(address, "model", model="tiny")["settings"]
    expect(page.page.locator(".composer")).to_contain_text("greedy: the best token each time")
    expect(page.page.get_by_label("Tokens of an answer, at most")).to_have_value(str(own["max_new_tokens"]))
    body = page.requested(lambda: page.ask("hi"))
    assert not {"temperature", "top_k", "top_p"} & body.keys()
    assert body["max_tokens"] is None
    page.wait_until_written()
    expect(page.why).to_contain_text("under the model: greedy took the best")
    page.sample()
    expect(page.why).to_contain_text("The run was greedy: the best token each time.")
    assert page.requested(lambda: page.ask("hi"))["temperature"] == 0.9
    page.wait_until_written()


def test_a_selection_is_kept_in_the_address_and_restored(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.answer.nth(5).click()
    page.why.locator("ol").first.locator(".row").nth(2).click()
    fragment = page.value("location.hash.slice(1)")
    assert fragment == "token=5&cell=2"
    page.show(address, fragment)
    assert page.selected == 5
    expect(page.why.locator("ol").first.locator(".row").nth(2)).to_have_attribute("aria-expanded", "true")


def test_an_address_that_makes_no_sense_opens_the_page(open_page: OpenPage, address: str) -> None:
    page = open_page()
    for fragment in ("token=999", "token=-1", "token=x&cell=%00", "cell=5&run=%3Cb%3E&view=%3Cb%3E"):
        page.show(address, fragment)
        assert page.selected >= 0, fragment


def test_arrows_walk_the_tokens(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address, "token=2")
    page.answer.nth(2).focus()
    page.page.keyboard.press("ArrowRight")
    assert page.selected == 3
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowLeft")
    assert page.selected == 0
    expect(page.answer.first).to_be_focused()


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.sweep)])  # which has the same sizes
def test_nothing_scrolls_sideways(open_page: OpenPage, address: str, dark: bool) -> None:
    page = open_page(dark=dark)
    page.show(address)
    assert page.value("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    for width in (390, 1024, 1440, 1920):
        page.page.set_viewport_size({"width": width, "height": 900})
        assert page.value("document.documentElement.scrollWidth") == width
    page.page.set_viewport_size({"width": 1440, "height": 900})


def test_the_journey_opens_a_blocks_values_and_their_python(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_role("button", name="30 blocks").click()
    values = page.page.get_by_role("table")
    expect(values).to_contain_text('at["blocks.0.attention.pattern"]')
    expect(values).to_contain_text("1×9×34×34")


def test_a_question_is_answered_by_the_model_and_stays_text(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.ask(HOSTILE)
    expect(page.page.get_by_role("region", name="Conversation").locator("p.tokens").first).to_contain_text("onerror")
    page.wait_until_written()
    assert page.page.locator("img").count() == 0
    assert page.page.title() == "Glassformer Studio"
    assert 1 <= page.answer.count() <= 6
    assert sum(page.bars().values()) == pytest.approx(100, abs=0.1)


def test_a_server_that_asks_for_a_key_or_is_gone_is_explained(open_page: OpenPage, sources: tuple[ModelSource, ...]) -> None:
    limits = Limits(new_tokens=4, stop_seconds=1)
    page = open_page()
    with serving(create_app(Registry(sources, limits), limits, Security(api_key=KEY))) as address:
        page.show(address)
        page.ask("hi")
        expect(page.alert).to_have_text("a key is needed: Authorization: Bearer KEY.")
        page.page.get_by_label("The server's key").fill(KEY)
        page.ask("hi")
        expect(page.page.get_by_role("banner")).to_contain_text("tiny")
        expect(page.page.get_by_role("button", name="Run")).to_be_visible()  # the answer is whole
        answered = page.answer.count()
    page.ask("hi")
    expect(page.alert).to_have_text(re.compile("^The server cannot be reached."))
    assert page.answer.count() == answered
