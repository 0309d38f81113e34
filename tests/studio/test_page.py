"""The studio's page in a real browser, held against the numbers of the recording and of the server."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glassformer.serving.http.app import create_app
from glassformer.serving.http.security import Security
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import KEY, serving
from tests.studio.browser import Browser, browser
from tests.studio.test_static import SOURCES

SHIPPED: dict[str, Any] = json.loads((SOURCES / "shipped-run.json").read_text("utf-8"))
ANSWER = "[...document.querySelectorAll('[aria-label=\"The answer\\'s tokens\"] button')]"
SELECTED = f"{ANSWER}.findIndex(token => token.ariaPressed === 'true')"
ROWS = "[...document.querySelectorAll('[aria-label=\"Why this token\"] ol')[0].querySelectorAll('.row')]"
BAR = "[row.querySelector('.text').textContent, parseFloat(row.querySelector('.bar').style.width)]"
BARS = f"Object.fromEntries({ROWS}.map(row => {BAR}))"
HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as window:
        yield window
        assert window.complaints == []


@pytest.fixture(scope="module")
def address(sources: tuple[ModelSource, ...]) -> Iterator[str]:
    limits = Limits(seconds=60, stop_seconds=1, new_tokens=6)
    with serving(create_app(Registry(sources, limits), limits)) as address:
        yield address


def opened(window: Browser, address: str, fragment: str = "", **options: Any) -> None:
    window.show(f"{address}/#{fragment}", **options)
    window.wait(f"document.readyState === 'complete' && {ANSWER}.length > 0")


def set_slider(window: Browser, number: int, value: float) -> None:
    slider = f"document.querySelectorAll('input[type=range]')[{number}]"
    window.value(f"{slider}.value = {value}; {slider}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def enter(window: Browser, selector: str, text: str, event: str) -> None:
    box = f"document.querySelector({json.dumps(selector)})"
    window.value(f"{box}.value = {json.dumps(text)}; {box}.dispatchEvent(new Event('{event}', {{bubbles: true}}))")


def ask(window: Browser, text: str) -> None:
    enter(window, "textarea", text, "input")
    window.value("document.querySelector('textarea').focus()")
    window.press("Enter")


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


def visible(text: str) -> str:
    return text.replace(" ", "·").replace("\n", "⏎")


def test_it_opens_on_the_shipped_run(window: Browser, address: str) -> None:
    opened(window, address)
    assert window.value(f"{ANSWER}.map(token => token.textContent)") == [
        visible(step["token"]["text"]) for step in SHIPPED["steps"]
    ]
    surprisals = [step["surprisal"] for step in SHIPPED["steps"]]
    assert window.value(SELECTED) == surprisals.index(max(surprisals))


def test_the_opening_writes_the_run_once_more(window: Browser, address: str) -> None:
    hidden = f"{ANSWER}.filter(token => getComputedStyle(token).visibility === 'hidden').length"
    opened(window, address, still=False)
    window.wait(f"{hidden} === 0")


@pytest.mark.parametrize("number", range(0, len(SHIPPED["steps"]), 4))
def test_a_tokens_bars_are_the_probabilities_that_it_was_chosen_by(window: Browser, address: str, number: int) -> None:
    step = SHIPPED["steps"][number]
    opened(window, address, f"token={number}")
    settings = SHIPPED["settings"]
    expected = shares(step, 1.0, settings["top_k"], settings["top_p"])
    bars = window.value(BARS)
    assert sum(bars.values()) == pytest.approx(100, abs=0.1)
    for text, share in zip(step["candidates"]["texts"][:8], expected, strict=False):
        assert bars[visible(text)] == pytest.approx(share, abs=0.1)


@pytest.mark.parametrize("temperature", [0.05, 0.5, 2])
def test_the_temperature_reshapes_the_bars_and_not_the_choice(window: Browser, address: str, temperature: float) -> None:
    step = SHIPPED["steps"][3]
    opened(window, address, "token=3")
    set_slider(window, 0, temperature)
    bars = window.value(BARS)
    assert window.value(SELECTED) == 3
    assert visible(step["token"]["text"]) in bars
    assert sum(bars.values()) == pytest.approx(100, abs=0.1)
    settings = SHIPPED["settings"]
    expected = shares(step, temperature, settings["top_k"], settings["top_p"])
    for text, share in zip(step["candidates"]["texts"][:8], expected, strict=False):
        assert bars[visible(text)] == pytest.approx(share, abs=0.1)


def test_a_selection_is_kept_in_the_address_and_restored(window: Browser, address: str) -> None:
    opened(window, address)
    window.value(f"{ANSWER}[5].click()")
    window.value(f"{ROWS}[2].click()")
    fragment = window.value("location.hash.slice(1)")
    assert fragment == "token=5&cell=2"
    opened(window, address, fragment)
    assert window.value(SELECTED) == 5
    assert window.value(f"{ROWS}.findIndex(row => row.ariaExpanded === 'true')") == 2


@pytest.mark.parametrize("fragment", ["token=999", "token=-1", "token=x&cell=%00", "cell=5&run=%3Cb%3E"])
def test_an_address_that_makes_no_sense_opens_the_page(window: Browser, address: str, fragment: str) -> None:
    opened(window, address, fragment)
    assert window.value(SELECTED) >= 0


def test_arrows_walk_the_tokens(window: Browser, address: str) -> None:
    opened(window, address, "token=2")
    window.value(f"{ANSWER}[2].focus()")
    window.press("ArrowRight")
    assert window.value(SELECTED) == 3
    window.press("Home")
    window.press("ArrowLeft")
    assert window.value(SELECTED) == 0
    assert window.value(f"document.activeElement === {ANSWER}[0]")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1024, 1440, 1920])
def test_nothing_scrolls_sideways(window: Browser, address: str, width: int, dark: bool) -> None:
    opened(window, address, width=width, dark=dark)
    assert window.value("document.documentElement.scrollWidth") == width
    assert window.value("document.documentElement.dataset.theme") == ("dark" if dark else "light")


def test_the_journey_opens_a_blocks_values_and_their_python(window: Browser, address: str) -> None:
    opened(window, address)
    window.value("[...document.querySelectorAll('nav button')].find(node => node.textContent.includes('30 blocks')).click()")
    window.wait("document.querySelector('table') !== null")
    cells = window.value("document.querySelector('table').innerText")
    assert 'at["blocks.0.attention.pattern"]' in cells
    assert "1×9×34×34" in cells


def test_a_question_is_answered_by_the_model_and_stays_text(window: Browser, address: str) -> None:
    opened(window, address)
    ask(window, HOSTILE)
    window.wait("document.querySelector('header').innerText.includes('tiny')")
    window.wait("document.querySelector('.conversation').innerText.includes('onerror')")
    assert window.value("document.querySelectorAll('img').length") == 0
    assert window.value("document.title") == "Glassformer Studio"
    assert 1 <= window.value(f"{ANSWER}.length") <= 6
    assert sum(window.value(BARS).values()) == pytest.approx(100, abs=0.1)


def test_a_server_that_asks_for_a_key_or_is_gone_is_explained(sources: tuple[ModelSource, ...], tmp_path: Path) -> None:
    limits = Limits(new_tokens=4, stop_seconds=1)
    with browser(tmp_path) as window:
        with serving(create_app(Registry(sources, limits), limits, Security(api_key=KEY))) as address:
            opened(window, address)
            ask(window, "hi")
            window.wait(
                "document.querySelector('[role=alert]')?.textContent === 'a key is needed: Authorization: Bearer KEY.'"
            )
            enter(window, "input[type=password]", KEY, "change")
            ask(window, "hi")
            window.wait("document.querySelector('header').innerText.includes('tiny')")
            answered = window.value(f"{ANSWER}.length")
        ask(window, "hi")
        window.wait("document.querySelector('[role=alert]')?.textContent.startsWith('The server cannot be reached.')")
        assert window.value(f"{ANSWER}.length") == answered
