"""The studio's lens grid: layers × tokens, of the recording and, on demand, of the prompt."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.patience import patience
from tests.studio.browser import OpenPage, StudioPage, visible
from tests.studio.test_page import SHIPPED, STEPS


def grid(page: StudioPage) -> Locator:
    return page.page.get_by_role("grid")


def cell(page: StudioPage, layer: int, column: int) -> Locator:
    return grid(page).locator(f'[data-row="{layer}"][data-column="{column}"]')


def show(page: StudioPage, address: str, fragment: str) -> None:
    page.page.goto("about:blank")
    page.page.goto(f"{address}/#view=lens&{fragment}")
    grid(page).wait_for()


def drop(page: StudioPage, recording: dict[str, Any]) -> None:
    """Onto the page, as a saved run."""
    page.page.evaluate(
        """text => {
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([text], "run.json"));
            window.dispatchEvent(new DragEvent("drop", {dataTransfer, cancelable: true}));
        }""",
        json.dumps(recording),
    )


def test_cells_are_what_was_recorded(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, "token=5")
    lens = STEPS[5]["lens"]
    texts = [visible(text).replace("\xa0", "\\u00a0") for text in lens["texts"]]
    expect(grid(page).locator('[data-column="5"] .text')).to_have_text(texts)
    widths = (
        grid(page).locator('[data-column="5"] .bar').evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    )
    assert widths == pytest.approx([100 * share for share in lens["probabilities"]], abs=0.01)
    outlined = [row for row in range(len(texts)) if "same" in (cell(page, row, 5).get_attribute("class") or "").split()]
    assert outlined == [row for row, text in enumerate(lens["texts"]) if text == STEPS[5]["token"]["text"]]

    page.page.get_by_role("button", name="rank").click()
    assert grid(page).locator('[data-column="5"] .number').all_text_contents() == [f"{rank:,}" for rank in lens["ranks"]]
    page.page.get_by_role("button", name="entropy").click()
    entropies = grid(page).locator('[data-column="5"] .number').all_text_contents()
    assert [float(entropy) for entropy in entropies] == pytest.approx(lens["entropies"], abs=0.051)


def test_a_cell_is_selected_by_click_and_keys_and_kept_in_the_address(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, "token=2")
    cell(page, 3, 4).click()
    assert "token=4&layer=3" in page.value("location.hash")
    expect(page.why).to_contain_text(visible(STEPS[4]["token"]["text"]))
    grid(page).focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowRight")
    assert "token=5&layer=4" in page.value("location.hash")
    expect(cell(page, 4, 5)).to_have_attribute("aria-selected", "true")
    assert grid(page).get_attribute("aria-activedescendant") == cell(page, 4, 5).get_attribute("id")
    cell(page, 1, 6).hover()
    expect(page.page.get_by_role("status").filter(has_text=re.compile("^block 0, before"))).to_contain_text(
        f"predicts {visible(STEPS[6]['lens']['texts'][1])}"
    )


def test_the_prompts_tokens_are_read_on_demand(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.ask("hi")
    expect(page.page.get_by_role("navigation", name="The journey from text to token")).not_to_contain_text("49,152")
    page.wait_until_written()
    answer = page.answer.count()
    page.page.get_by_role("button", name="Lens").click()
    expect(grid(page)).to_have_attribute("aria-rowcount", str(answer + 1))
    page.page.get_by_label("the prompt's tokens too").check()
    grid(page).focus()
    page.page.keyboard.press("Home")
    expect(cell(page, 0, 0).locator(".text")).to_be_visible()
    lens = httpx.post(f"{address}/glass/lens", json={"prompt": "hi", "positions": [0, 1]}, timeout=patience(300)).json()
    texts = [visible(layer[0]["text"]) for layer in lens["predictions"]]
    expect(grid(page).locator('[data-column="0"] .text')).to_have_text(texts)
    expect(grid(page).locator(".head .column").first).to_have_text(visible(lens["tokens"][1]))
    assert "position=0" in page.value("location.hash")


def test_a_long_run_has_few_nodes_and_scrolls_to_its_end(open_page: OpenPage, address: str) -> None:
    page = open_page(1920, 1080)
    show(page, address, "token=0")
    steps = [{**STEPS[number % len(STEPS)]} for number in range(500)]
    drop(page, {**SHIPPED, "steps": steps})
    page.page.get_by_role("button", name="Lens").click()
    expect(grid(page)).to_have_attribute("aria-rowcount", "501")
    grid(page).focus()
    page.page.keyboard.press("End")
    expect(cell(page, 30, 499)).to_be_visible()
    assert page.value("document.querySelectorAll('*').length") < 5000
    grid(page).evaluate(
        """grid => new MutationObserver((changes) => {
            const made = changes.flatMap(({ addedNodes }) => [...addedNodes]).find((node) => node instanceof Element);
            if (made) grid.dataset.made = made.tagName;
        }).observe(grid, { childList: true, subtree: true })"""
    )
    for share in (0.9, 0.5, 0.1):
        grid(page).evaluate("(grid, share) => { grid.scrollLeft = share * grid.scrollWidth }", share)
        expect(cell(page, 0, int(500 * share))).to_be_visible()
    assert grid(page).get_attribute("data-made") is None, "scrolling makes elements, which takes long"
    cell(page, 7, 50).hover()
    expect(page.page.get_by_role("status").filter(has_text="block 6, before")).to_be_visible()


def test_no_view_scrolls_sideways_on_a_phone(open_page: OpenPage, address: str) -> None:
    page = open_page(390, 844, dark=True)
    page.page.goto(f"{address}/#view=attention&token=0&text=the+cat+sat%0Athe+dog+sat")
    views = page.page.get_by_role("navigation", name="Views")
    for view in ("Attention", "Lens", "Patch"):
        views.get_by_role("button", name=view).click()
        expect(page.page.locator("code")).to_be_visible()
        assert page.value("document.documentElement.scrollWidth") == 390, view
