"""The studio's patching view: two texts, and which places inside carry their difference."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode

from playwright.sync_api import expect

from tests.studio.api import post
from tests.studio.browser import OpenPage, StudioPage, visible

CLEAN, CORRUPTED = "the cat sat on the mat", "the dog sat on the mat"


def show(page: StudioPage, address: str, *lines: str, **fragment: Any) -> None:
    page.page.goto("about:blank")
    page.page.goto(f"{address}/#{urlencode({'token': 0, 'view': 'patch', 'text': chr(10).join(lines), **fragment})}")
    expect(page.page.get_by_text("Press Patch: the corrupted text is read once for each")).to_be_visible()
    press_patch(page)


def press_patch(page: StudioPage) -> None:
    page.page.get_by_role("region", name="Patch").get_by_role("button", name="Patch").click()


def patching(address: str, part: str, **fields: Any) -> Any:
    return post(address, "patch", first=CLEAN, second=CORRUPTED, raw=True, part=part, **fields)


def signed(value: float) -> str:
    rounded = round(100 * value)
    return f"{'+' if rounded > 0 else '−' if rounded < 0 else ''}{abs(rounded)} %"


def test_cells_are_the_values_of_the_api(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, CLEAN, CORRUPTED)
    grid = page.page.get_by_role("grid", name="How much of the answer each place recovers")
    for part, button in (("residual", "residual"), ("attention", "attention"), ("mlp", "MLP")):
        page.page.get_by_role("group", name="What is patched").get_by_role("button", name=button).click()
        data = patching(address, part)
        expect(grid.get_by_role("columnheader")).to_have_count(len(data["layers"]))
        expect(page.page.get_by_text(f'"{part}"')).to_be_visible()
        tokens = [visible(data["tokens"][1][position]) for position in data["positions"]]
        expect(grid.locator(".head .column")).to_have_text(tokens)
        cells = grid.get_by_role("gridcell").evaluate_all(
            "cells => cells.map(cell => [cell.dataset.row, cell.dataset.column, cell.ariaLabel, cell.className])"
        )
        assert len(cells) == len(tokens) * len(data["layers"])
        for row, column, label, marks in cells:
            value = data["values"][int(row)][int(column)]
            assert re.search(r": (.*) of the answer", label).group(1) == signed(value)  # type: ignore[union-attr]
            kind = "positive" if value > 0 else "negative"
            assert (kind in marks) == (abs(value) >= 0.02)


def test_a_cell_is_selected_and_its_number_is_said(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, CLEAN, CORRUPTED)
    grid = page.page.get_by_role("grid")
    grid.locator('[data-row="0"][data-column="1"]').click()
    data = patching(address, "residual")
    assert f"layer=0&position={data['positions'][1]}" in page.value("location.hash")
    page.page.mouse.move(1, 1)
    status = page.page.get_by_role("status").filter(has_text="of the answer recovered")
    expect(status).to_contain_text(
        f"embedding, {visible(data['tokens'][1][data['positions'][1]])}: {signed(data['values'][0][1])}"
    )
    grid.focus()
    page.page.keyboard.press("ArrowDown")
    expect(status).to_contain_text("block 0, ")


def test_texts_are_typed_and_what_is_wrong_with_them_is_said_in_place(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, CLEAN, CORRUPTED)
    page.page.get_by_label("corrupted text", exact=True).fill("the dog")
    page.page.get_by_role("grid").locator("[data-row]").first.click()  # what was typed stays
    press_patch(page)
    expect(page.alert).to_contain_text(re.compile(r"the texts have \d+ and \d+ tokens"))
    expect(page.page.get_by_text("model.patch(")).to_be_visible()
    page.page.get_by_label("corrupted text", exact=True).fill(CORRUPTED)
    page.page.get_by_label("clean answer").fill("·mat")
    page.page.get_by_label("clean answer").press("Enter")
    expect(page.page.get_by_text('answer=" mat"')).to_be_visible()
    expect(page.page.get_by_role("grid")).to_be_visible()
