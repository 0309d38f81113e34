"""Stepping inside in a real browser: what is printed is what the engine gives, down to one dot product, and back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, expect

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.see.models import both, encoder, folder
from tests.serving.conftest import serving
from tests.studio.browser import OpenPage, StudioPage
from tests.studio.test_page import SHIPPED

TEXT = "the cat sat"
FAMILIES = {"qwen3": "causal", "t5": "seq2seq", "bert": "masked", "qwen3_moe": "causal"}
NAMES = {family: str(folder(family, head)[0]) for family, head in FAMILIES.items()}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server with a tiny decoder, encoder-decoder, encoder and mixture of experts."""
    limits = Limits(stop_seconds=1, new_tokens=4)
    sources = [
        ModelSource(NAMES[family], partial(glassformer.load, folder(family, head)[0])) for family, head in FAMILIES.items()
    ]
    with serving(create_app(Registry(sources, limits), limits)) as address:
        yield address


def reading_of(family: str) -> Any:
    return (encoder("bert") if family == "bert" else both(family)).model.read(TEXT, raw=True)


def step_inside(page: StudioPage, address: str, family: str, part: str = "", position: str = "") -> Locator:
    """Open a level of a model that reads the text; returns what it shows."""
    place = f"&position={position}" if position else ""
    page.page.goto("about:blank")
    page.page.goto(f"{address}/#view=inside&text={quote(TEXT)}&part={part}{place}")
    if family != "qwen3":
        page.page.get_by_label("The model that the next text is asked of").select_option(NAMES[family])
    stage = page.page.locator(".stage")
    stage.wait_for()
    return stage


def trail(page: StudioPage) -> Locator:
    return page.page.get_by_role("navigation", name="Levels").get_by_role("listitem")


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("+", ""))


@pytest.mark.parametrize(
    ("family", "attention", "head", "position", "key"),
    [
        ("qwen3", "blocks.1.attention", 3, 7, 2),  # key and value heads that are shared, norms of heads, RoPE
        pytest.param("bert", "blocks.2.attention", 1, 1, 3, marks=pytest.mark.sweep),
        pytest.param("t5", "blocks.1.cross", 2, 0, 3, marks=pytest.mark.sweep),
    ],
)
def test_printed_terms_sum_to_the_score_that_becomes_the_engines_weight(
    open_page: OpenPage, address: str, family: str, attention: str, head: int, position: int, key: int
) -> None:
    page = open_page()
    stage = step_inside(page, address, family, f"{attention}.heads.{head}.{key}", str(position))
    expect(trail(page).last).to_have_text("q·k")
    pattern = reading_of(family).at(f"{attention}.pattern")[head, position]
    steps = stage.get_by_role("list", name="Step by step").get_by_role("listitem")
    expect(steps.last.locator(".value")).to_have_text(f"{pattern[key]:.4f}")
    expect(stage.locator(".engine")).to_have_text(f"{pattern[key]:.4f}")
    printed = {step.locator(".name").inner_text(): number(step.locator(".value").inner_text()) for step in steps.all()}
    terms = [number(text) for text in stage.locator(".term .value").all_text_contents()]
    assert len(terms) == {"qwen3": 12, "bert": 12, "t5": 10}[family]
    assert sum(terms) == pytest.approx(printed["q · k"], abs=1e-4)
    assert number(stage.locator(".total b").inner_text()) == printed["q · k"]
    assert printed["exponential"] / printed["sum"] == pytest.approx(printed["weight"], abs=1e-3)
    assert page.value("document.documentElement.scrollWidth") == 1440


def test_what_each_expert_adds_sums_to_the_engines_number(open_page: OpenPage, address: str) -> None:
    page = open_page()
    stage = step_inside(page, address, "qwen3_moe", "blocks.0.mlp.update.3", "2")
    reading = reading_of("qwen3_moe")
    expect(stage.locator(".engine")).to_have_text(f"{reading.at('blocks.0.mlp.update')[2, 3]:.4f}".replace("-", "−"))
    steps = stage.get_by_role("list", name="Step by step").get_by_role("listitem")
    experts = [choice.expert for choice in reading.experts().layers[0].tokens[2]]
    names = steps.locator(".name").all_inner_texts()
    assert sorted(names[:-1]) == sorted(f"expert {expert}" for expert in experts)
    *parts, total = (number(text) for text in steps.locator(".value").all_inner_texts())
    assert sum(parts) == pytest.approx(total, abs=2e-4)


def test_clicks_lead_in_and_back_retraces_each_level(open_page: OpenPage, address: str) -> None:
    page = open_page(still=False)
    stage = step_inside(page, address, "qwen3")
    trails = [["model"]]
    for name, label in [("block 1", "block 1"), ("attention", "attention"), ("head 2", "head 2"), ("c", "q·k")]:
        stage.get_by_role("button", name=name, exact=True).first.click()
        trails.append([*trails[-1], label])
        expect(trail(page)).to_have_text(trails[-1])
    assert "part=blocks.1.attention.heads.2.4&" in page.value("location.hash")
    for labels in reversed(trails[:-1]):
        page.page.go_back()
        expect(trail(page)).to_have_text(labels)
    page.page.go_forward()
    expect(trail(page)).to_have_text(trails[1])


def test_keys_walk_in_and_out_and_beside(open_page: OpenPage, address: str) -> None:
    page = open_page()
    step_inside(page, address, "qwen3", "blocks.1.attention.heads.2", "5")
    for key, labels in {
        "ArrowRight": ["model", "block 1", "attention", "head 3"],
        "Enter": ["model", "block 1", "attention", "head 3", "q·k"],
        "Escape": ["model", "block 1", "attention", "head 3"],
    }.items():
        page.page.keyboard.press(key)
        expect(trail(page)).to_have_text(labels)
    expect(page.page.get_by_text("at token 5")).to_be_visible()
    page.page.keyboard.press("ArrowUp")
    expect(page.page.get_by_text("at token 4")).to_be_visible()
    for label in ("attention", "block 1", "model"):
        page.page.keyboard.press("Escape")
        expect(trail(page).last).to_have_text(label)
    expect(page.page.get_by_role("button", name="block 1", exact=True)).to_be_focused()


def test_an_unknown_level_in_the_address_opens_the_nearest(open_page: OpenPage, address: str) -> None:
    page = open_page(390, 844, dark=True)
    levels = {"nothing": "model", "blocks.1.attention.heads.99.4": "attention", "blocks.1.%3Cimg%20src=x%3E": "block 1"}
    for part, label in levels.items():
        step_inside(page, address, "qwen3", part)
        expect(trail(page).last).to_have_text(label)
        assert page.value("document.documentElement.scrollWidth") == 390
        assert page.page.locator("img").count() == 0


def test_every_number_of_a_block_is_drawn_from_the_blueprint(open_page: OpenPage, address: str) -> None:
    page = open_page()
    stage = step_inside(page, address, "t5", "blocks.1")
    names = [part.name for part in reading_of("t5").inside("blocks.1").parts]
    expect(stage.locator("li .name")).to_have_text(names)
    stage.get_by_role("button", name="MLP").click()
    stage.get_by_role("button", name="neurons").click()
    expect(trail(page).last).to_have_text("neurons")
    stage.get_by_role("button", name="neuron").first.click()
    expect(trail(page).last).to_have_text(re.compile(r"^neuron \d+$"))
    value = reading_of("t5").at("blocks.1.mlp.hidden")[0, int(trail(page).last.inner_text().split()[-1])]
    expect(stage.locator(".engine")).to_have_text(f"{value:.4f}")


def test_a_run_is_stepped_into_from_its_journey(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_role("button", name="raw").click()
    page.page.get_by_role("textbox").fill("a cat")
    page.page.keyboard.press("Enter")
    journey = page.page.get_by_role("navigation", name="The journey from text to token")
    expect(journey).to_contain_text("3 blocks")
    prompt = page.page.get_by_role("region", name="Conversation").locator(".tokens").first.locator("span").count()
    page.answer.nth(2).click()
    expect(journey).to_contain_text(f"1×{prompt + 2}×48")
    journey.get_by_role("button", name="3 blocks").click()
    expect(page.page.get_by_role("table")).to_contain_text(f"1×4×{prompt + 2}×{prompt + 2}")
    journey.get_by_role("button", name="Step inside").first.click()
    expect(trail(page)).to_have_text(["model", "block 0"])
    expect(page.page.get_by_text(f"at token {prompt + 1}")).to_be_visible()
    page.page.go_back()
    expect(page.answer.nth(2)).to_have_attribute("aria-pressed", "true")


def test_a_model_that_is_not_there_is_explained(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.page.goto(f"{address}/#view=inside&part=blocks.3")
    expect(page.alert).to_contain_text(f"there is no model '{SHIPPED['model']}' here.")
    expect(page.page.locator("pre").first).to_contain_text('reading.inside("blocks.3", ')
