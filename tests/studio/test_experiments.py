"""The studio's view Experiments: any view of the server, by a form that is made from its request, as a page of parts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, expect

from glassformer.page.document import Collapsible, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.document import Column as TableColumn
from glassformer.see.schema import page_data
from glassformer.serving.http.openapi import PAGE
from tests.serving.test_pages import PARTS
from tests.studio.browser import OpenPage, StudioPage

TEXT, OTHER = "the cat sat on the mat", "the dog sat on the mat"
ALL_KINDS = page_data(Page("every kind of part", PARTS), "model.everything()")


def show(page: StudioPage, address: str, name: str | None = None, asked: Any = None, **fragment: Any) -> Locator:
    """Open the view at an experiment; gives its region."""
    chosen = {} if name is None else {"experiment": name}
    link = {} if asked is None else {"asked": json.dumps(asked)}
    page.page.goto("about:blank")
    page.page.goto(f"{address}/#{urlencode({'view': 'experiments', **chosen, **link, **fragment})}")
    region = page.page.get_by_role("region", name="Experiments")
    region.get_by_role("button", name="Run", exact=True).wait_for()
    return region


def run(region: Locator) -> Locator:
    """Press Run, and wait for the page that comes of it."""
    region.get_by_role("button", name="Run", exact=True).click()
    article = region.get_by_role("article")
    article.wait_for()
    return article


def answer_with(page: StudioPage, view: str, data: Any) -> None:
    """Let the server give this page of a view."""
    page.page.route(f"**/glass/{view}", lambda route: route.fulfill(body=json.dumps(data), content_type=PAGE))


@pytest.mark.parametrize(
    ("name", "asked"),
    [("trace", {"prompt": TEXT, "raw": True}), ("patch", {"first": TEXT, "second": OTHER, "raw": True, "part": "mlp"})],
)
def test_the_page_is_the_one_that_the_api_gives(open_page: OpenPage, address: str, name: str, asked: Any) -> None:
    page = open_page()
    region = show(page, address, name, asked)
    with page.page.expect_request(f"**/glass/{name}") as request:
        article = run(region)
    sent = request.value
    assert sent.headers["accept"] == PAGE
    assert sent.post_data_json == {"model": "tiny", **asked}
    with page.page.expect_response(f"**/glass/{name}") as response:
        region.get_by_role("button", name="Run", exact=True).click()
    data = response.value.json()
    assert data["schema"] == "glassformer.page/1"
    expect(article.get_by_role("heading").first).to_have_text(data["title"])
    expect(article.locator("code").last).to_have_text(data["python"])
    table = next((part for part in data["parts"] if part["kind"] == "table"), None)
    grid = next((part for part in data["parts"] if part["kind"] == "grid"), None)
    if table is not None:
        texts = [cell for row in table["rows"] for cell in row["cells"] if isinstance(cell, str)]
        cells = article.get_by_role("table").first.locator("td:not(:has(.track))")
        assert set(texts) <= set(cells.all_text_contents())
        expect(article.get_by_role("table").first.locator("tbody tr")).to_have_count(len(table["rows"]))
    if grid is not None:
        expect(article.get_by_role("grid").get_by_role("columnheader")).to_have_text(grid["row_labels"])
    assert table or grid


def test_every_kind_of_part_is_drawn_and_within_the_keyboards_reach(open_page: OpenPage, address: str) -> None:
    page = open_page()
    region = show(page, address, "trace", {"prompt": TEXT})
    answer_with(page, "trace", ALL_KINDS)
    article = run(region)
    expect(article.get_by_role("heading", name="every kind of part")).to_be_visible()
    expect(article.get_by_role("heading", name="a", exact=True)).to_be_visible()
    expect(article.locator("p.dim")).to_have_text("two\nlines")
    expect(article.locator("pre mark")).to_have_text("is")
    table = article.get_by_role("table").first
    expect(table.locator("tr.strong td").first).to_have_text("long")
    widths = table.locator(".bar").evaluate_all("bars => bars.map(bar => bar.style.width)")
    assert [float(width.removesuffix("%")) for width in widths] == [50, 100]

    grid = article.get_by_role("grid", name="A heat map")
    status = article.get_by_role("status").filter(has_text="row · ")
    expect(status).to_have_text("row · one: a note")
    grid.focus()
    page.page.keyboard.press("ArrowRight")
    expect(status).to_have_text("row · two")
    expect(grid.locator(".shade")).to_have_count(1)  # the other cell is empty
    expect(grid.locator(".shade")).to_have_text("a")

    maps = article.get_by_role("toolbar", name="Maps")
    maps.get_by_role("button", name="0, 0").focus()
    page.page.keyboard.press("ArrowRight")
    expect(maps.get_by_role("button", name="0, 1")).to_have_attribute("aria-pressed", "true")
    expect(article.locator("figcaption").filter(has_text="0, 1")).to_be_visible()
    pixels = "canvas => Array.from(canvas.getContext('2d').getImageData(0, 0, 2, 2).data)"
    assert len(set(map(tuple, zip(*[iter(article.locator("figure > canvas").evaluate(pixels))] * 4, strict=True)))) > 1

    chart = article.get_by_role("img", name=re.compile("^loss: "))
    chart.focus()
    page.page.keyboard.press("End")
    expect(article.get_by_role("status").filter(has_text="at step 0")).to_be_visible()  # the other point is no number

    tree = article.locator(".tree")
    expect(tree.locator("summary .mono")).to_have_text("root")
    expect(tree.locator(".leaf")).to_have_text("leaf")

    attending = article.get_by_role("toolbar", name="Tokens that attend").get_by_role("button")
    expect(attending).to_have_text("a")
    expect(article.get_by_role("list", name="Tokens that are attended to").get_by_role("listitem")).to_have_class(
        re.compile("masked")
    )
    expect(article.locator("code").last).to_have_text("model.everything()")


def test_a_token_leads_to_the_part_that_it_links_to(open_page: OpenPage, address: str) -> None:
    page = open_page()
    region = show(page, address, "trace", {"prompt": TEXT})
    strip, closed = PARTS[7], Collapsible("more", (Paragraph("inside"),), anchor="there")
    answer_with(page, "trace", page_data(Page("linked", (strip, closed))))
    article = run(region)
    inside = article.get_by_text("inside", exact=True)
    expect(inside).to_have_count(0)
    tokens = article.get_by_role("toolbar", name="Tokens").get_by_role("button")
    tokens.first.focus()
    page.page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(article.get_by_role("status").filter(has_text="sure")).to_be_visible()
    page.page.keyboard.press("Enter")
    expect(inside).to_be_visible()
    expect(article.locator("summary", has_text="more")).to_be_focused()


def test_texts_are_texts_and_an_unknown_part_is_said(open_page: OpenPage, address: str) -> None:
    page = open_page(390, 844, dark=True)
    markup = "<img src=x onerror=\"document.title='out'\">" + "long" * 100
    columns = (TableColumn("<b>"), TableColumn("", "signed bar"))
    parts = (Heading(markup), Paragraph(markup), Table(columns, (TableRow((markup, -0.5)),)))
    data = page_data(Page("<i>hostile</i>", parts))
    data["parts"].append({"kind": "hologram", "text": markup})
    region = show(page, address, "trace", {"prompt": TEXT})
    answer_with(page, "trace", data)
    article = run(region)
    expect(article.get_by_text(markup)).to_have_count(3)
    expect(article.get_by_text("A part of this page is newer than the studio that shows it.")).to_be_visible()
    assert page.page.title() == "Glassformer Studio"
    assert page.value("document.documentElement.scrollWidth") == 390
    assert article.evaluate("article => article.scrollWidth <= article.parentElement.clientWidth")
    expect(article.locator("code")).to_contain_text("curl ")  # nobody said its Python


def test_the_form_begins_with_what_is_selected_and_a_link_restores_it(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address, "token=2")
    tokens = page.answer.all_text_contents()
    region = show(page, address, "attention", token=2, layer=1, head=0)
    prompt = region.get_by_role("textbox", name="prompt")
    expect(prompt).to_have_value(re.compile(re.escape("".join(tokens[:2]).replace("·", " ").replace("⏎", "\n")) + "$"))
    expect(region.get_by_role("spinbutton", name="layer")).to_have_value("1")
    expect(region.get_by_role("spinbutton", name="head")).to_have_value("0")
    expect(region.get_by_role("combobox", name="kind")).to_have_value("self")
    prompt.fill(TEXT)
    region.get_by_role("spinbutton", name="layer").fill("")
    region.get_by_role("spinbutton", name="head").fill("")
    prompt.focus()
    page.page.keyboard.press("Control+Enter")
    expect(region.get_by_role("article")).to_contain_text("Python")
    link = page.value("location.hash")
    page.page.goto("about:blank")
    page.page.goto(f"{address}/{link}")
    expect(prompt).to_have_value(TEXT)
    expect(region.get_by_role("spinbutton", name="layer")).to_have_value("")
    region.get_by_text("How the text is read, and changes inside the model").click()
    expect(region.get_by_role("checkbox", name="raw")).to_be_checked()


def test_a_link_that_is_followed_refills_an_open_form(open_page: OpenPage, address: str) -> None:
    page = open_page()
    region = show(page, address, "trace", {"prompt": TEXT, "raw": True}, token=1)
    prompt = region.get_by_role("textbox", name="prompt")
    expect(prompt).to_have_value(TEXT)
    run(region)
    prompt.fill("half of a")
    link = urlencode({"view": "experiments", "experiment": "trace", "asked": json.dumps({"prompt": OTHER}), "token": 1})
    page.value(f"void (location.hash = {json.dumps('#' + link)})")
    expect(prompt).to_have_value(OTHER)
    region.get_by_text("How the text is read, and changes inside the model").click()
    expect(region.get_by_role("checkbox", name="raw")).not_to_be_checked()
    prompt.fill("half of a")
    page.value(f"void (location.hash = {json.dumps('#' + link.replace('token=1', 'token=2'))})")
    page.page.wait_for_function("location.hash.includes('token=2')")
    expect(prompt).to_have_value("half of a")  # the same is asked for: what is typed stays
    page.page.go_back()
    page.page.go_back()
    expect(prompt).to_have_value(TEXT)


def test_what_makes_no_sense_is_said_before_and_after_it_is_sent(open_page: OpenPage, address: str) -> None:
    page = open_page()
    region = show(page, address, "lens", {"prompt": TEXT, "raw": True, "positions": [1, "·sat"]})
    expect(region.get_by_role("textbox", name="positions")).to_have_value("1, ·sat")
    with page.page.expect_request("**/glass/lens") as request:
        run(region)
    assert request.value.post_data_json["positions"] == [1, " sat"]
    region.get_by_text("How the text is read, and changes inside the model").click()
    region.get_by_role("textbox", name="change").fill("{")
    region.get_by_role("button", name="Run", exact=True).click()
    expect(page.alert).to_have_text('“change” takes JSON, such as {"name": 1} or [["a", "b"]].')
    region.get_by_role("textbox", name="change").fill("")
    region.get_by_role("textbox", name="answer ids").fill("5, five")
    region.get_by_role("button", name="Run", exact=True).click()
    expect(page.alert).to_have_text("“answer ids” takes numbers, and “five” is none.")
    region.get_by_role("textbox", name="answer ids").fill("1.5")
    region.get_by_role("button", name="Run", exact=True).click()
    expect(page.alert).to_have_text("“answer ids” takes whole numbers, and “1.5” is none.")
    region.get_by_role("textbox", name="answer ids").fill("")
    region.get_by_role("textbox", name="positions").fill("10000")
    region.get_by_role("button", name="Run", exact=True).click()
    expect(page.alert).to_contain_text("10000")


def test_an_answer_that_is_no_page_is_refused(open_page: OpenPage, address: str) -> None:
    page = open_page()
    region = show(page, address, "trace", {"prompt": TEXT})
    later = {**ALL_KINDS, "schema": "glassformer.page/2"}
    for data in ({"schema": "glassformer.trace/2"}, later, {**ALL_KINDS, "parts": 1}):
        answer_with(page, "trace", data)
        with page.page.expect_response("**/glass/trace"):
            region.get_by_role("button", name="Run", exact=True).click()
        expect(page.alert).to_have_text(re.compile("^The server gave no page of this view that this studio can show."))
        expect(region.get_by_role("article")).to_have_count(0)


def test_running_can_be_cancelled(open_page: OpenPage, address: str) -> None:
    page = open_page()
    region = show(page, address, "trace", {"prompt": TEXT})
    page.page.route("**/glass/trace", lambda route: None)  # it is never answered
    region.get_by_role("button", name="Run", exact=True).click()
    expect(region.get_by_role("button", name="Run", exact=True)).to_be_disabled()
    region.get_by_role("button", name="Cancel").click()
    expect(region.get_by_text("Reading was cancelled.")).to_be_visible()
    expect(region.get_by_role("button", name="Run", exact=True)).to_be_enabled()


def test_the_palette_finds_views_that_have_no_other_place(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.keyboard.press("Control+k")
    page.page.keyboard.type("its surprisal")
    dialog = page.page.get_by_role("dialog")
    expect(dialog.get_by_role("option")).to_have_count(1)
    page.page.keyboard.press("Enter")
    region = page.page.get_by_role("region", name="Experiments")
    expect(region.get_by_role("group", name="Experiments").get_by_role("button", name="Trace")).to_have_attribute(
        "aria-pressed", "true"
    )
    others = region.get_by_role("group", name="Views").get_by_role("button")
    expect(others.filter(has_text=re.compile("^Patch$"))).to_have_count(1)
    names = {view["title"] for view in page.value("fetch('./glass/views').then(r => r.json())")["views"]}
    assert set(region.get_by_role("group").get_by_role("button").all_text_contents()) == names


def test_a_saved_page_holds_the_results(open_page: OpenPage, address: str, tmp_path: Path) -> None:
    page = open_page()
    region = show(page, address, "trace", {"prompt": TEXT, "raw": True})
    article = run(region)
    rows = article.get_by_role("table").first.locator("tbody tr").all_text_contents()
    assert len(rows) > 3
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Save").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    other = open_page(1200, 800)
    other.show_file(saved)
    region = other.page.get_by_role("region", name="Experiments")
    expect(region.get_by_role("article").get_by_role("table").first.locator("tbody tr")).to_have_text(rows)
    expect(region.get_by_text(TEXT, exact=True)).to_be_visible()
    expect(region.locator("code").last).to_have_text(f"model.read({TEXT!r}, raw=True).trace()")
    expect(region.get_by_role("button", name="Run", exact=True)).to_have_count(0)


def test_a_page_without_results_says_how_to_have_some(open_page: OpenPage, recording: Any, tmp_path: Path) -> None:
    page = open_page()
    page.show_file(recording.save(tmp_path / "run.html"), "view=experiments&token=1")
    expect(page.page.get_by_text("This page has no model, and holds no experiment.")).to_be_visible()
