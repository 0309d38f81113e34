"""The studio on a phone: the conversation, a sheet over it that says why, and a bar below."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.studio.browser import OpenPage

WIDTH, HEIGHT = 390, 844


def test_the_sheet_is_pressed_dragged_and_walked_to_each_size(open_page: OpenPage, address: str) -> None:
    page = open_page(WIDTH, HEIGHT)
    page.show(address, "token=2")
    expect(page.page.get_by_label("thinking")).to_be_visible()  # the last to come, when the model is known
    room: float = page.page.locator("main").evaluate("main => main.clientHeight")
    handle = page.why.locator(".handle")

    def height() -> float:
        size: float = page.why.evaluate("sheet => sheet.clientHeight")
        return size

    peek = height()
    assert 80 <= peek <= 0.3 * room
    expect(page.why.locator(".token")).to_be_in_viewport()
    assert page.page.get_by_role("navigation", name="Views").evaluate("bar => bar.getBoundingClientRect().bottom") <= HEIGHT
    sizes = []
    for _ in range(3):
        handle.click()
        sizes.append(height())
    assert sizes == pytest.approx([room / 2, room, peek], abs=2)

    box = handle.bounding_box()
    assert box is not None
    mouse = page.page.mouse
    mouse.move(WIDTH / 2, box["y"] + 8)
    mouse.down()
    mouse.move(WIDTH / 2, box["y"] - 80)
    assert height() == pytest.approx(peek + 88, abs=3), "it follows the finger"
    mouse.move(WIDTH / 2, box["y"] - 0.4 * room)
    mouse.up()
    assert height() == pytest.approx(room / 2, abs=2)

    handle.focus()
    page.page.keyboard.press("ArrowUp")
    assert height() == pytest.approx(room, abs=2)
    page.page.keyboard.press("ArrowUp")
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("ArrowDown")
    assert height() == pytest.approx(peek, abs=2)
    expect(handle).to_have_attribute("aria-label", "Why this token: closed. Press for the next size")


def test_a_hint_leads_to_the_views_beyond_the_edge(open_page: OpenPage, address: str) -> None:
    page = open_page(WIDTH, HEIGHT)
    page.show(address)
    views = page.page.get_by_role("navigation", name="Views")
    last = views.get_by_role("button").last
    expect(last).not_to_be_in_viewport()
    expect(page.page.get_by_text("›", exact=True)).to_be_visible()
    page.wait(  # the hint goes when the strip has come to its end: found and pressed in one step, once in a frame
        "() => { const hint = document.querySelector('.views .more'); hint?.click(); return hint === null }"
    )
    expect(last).to_be_in_viewport()


def test_a_token_above_the_sheet_can_be_chosen(open_page: OpenPage, address: str) -> None:
    page = open_page(WIDTH, HEIGHT)
    page.show(address)
    page.answer.nth(3).tap()
    expect(page.why.locator(".token")).to_have_text(page.answer.nth(3).text_content() or "")
    assert page.page.get_by_role("textbox", name="A message to the model").is_visible()
