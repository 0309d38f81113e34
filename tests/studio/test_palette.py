"""Everything by the keyboard: the palette, and the list of keys."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.studio.browser import OpenPage


def test_the_palette_finds_views_tokens_and_actions(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address, "token=0")
    keyboard, palette = page.page.keyboard, page.page.get_by_role("dialog")
    options = palette.get_by_role("option")
    keyboard.press("Control+k")
    expect(palette.get_by_role("combobox")).to_be_focused()
    assert options.count() > 20
    keyboard.type("len")
    expect(options.first).to_contain_text("Lens")
    keyboard.press("Enter")
    expect(page.page.get_by_role("region", name="Lens")).to_be_visible()
    expect(palette).to_have_count(0)

    keyboard.press("Meta+k")
    keyboard.type("great")
    keyboard.press("Enter")
    expect(page.why.locator(".token")).to_have_text("·great")

    keyboard.press("Control+k")
    keyboard.type("conversation")
    keyboard.press("Enter")
    page.answer.first.wait_for()

    keyboard.press("Control+k")
    keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    keyboard.type("switch light")
    keyboard.press("Enter")
    assert page.value("document.documentElement.dataset.theme") == "dark"

    keyboard.press("Control+k")
    keyboard.type("no such thing")
    expect(palette).to_contain_text("Nothing here has that name.")
    keyboard.press("Enter")
    keyboard.press("Escape")
    expect(palette).to_have_count(0)


def test_a_question_mark_lists_the_keys_unless_it_is_typed(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.keyboard.press("?")
    keys = page.page.get_by_role("dialog", name="Keys")
    expect(keys).to_contain_text("Find a view, a token or an action by typing")
    page.page.keyboard.press("Escape")
    expect(keys).to_have_count(0)
    field = page.page.get_by_role("textbox", name="A message to the model")
    field.focus()
    page.page.keyboard.press("?")
    expect(field).to_have_value("?")
    expect(keys).to_have_count(0)
