"""A run as one HTML file: the same page, from the disk, without a server."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from glassformer.ground.errors import InputError
from glassformer.runtime.run import Run
from glassformer.see.recording import CANDIDATES, Recording
from glassformer.studio import javascript_json, saved_page, script, template
from tests.studio.browser import OpenPage, visible
from tests.studio.test_page import shares

MAX_TEMPLATE = 300_000  # bytes, compressed


@pytest.fixture
def page_file(recording: Recording, tmp_path: Path) -> Path:
    return recording.save(tmp_path / "run.html")


def embedded_data(html: str) -> Any:
    (text,) = re.findall(r'<script type="application/json" data-recording data-selection="">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


def test_the_file_holds_its_data_and_one_script_that_its_policy_allows(recording: Recording, page_file: Path) -> None:
    html = page_file.read_text("utf-8")
    assert embedded_data(html) == json.loads(json.dumps(recording.to_dict()))
    (code,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    assert code == script()
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy == f"default-src 'none'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not re.search(r"<link|<style|<img|<iframe|\son\w+=", html.replace(code, ""))
    assert len(gzip.compress(template().encode())) <= MAX_TEMPLATE


def test_it_works_from_the_disk_without_a_network(open_page: OpenPage, recording: Recording, page_file: Path) -> None:
    page = open_page()
    page.show_file(page_file)
    assert page.answer.all_text_contents() == [visible(step.token.text) for step in recording.steps]
    step = recording.steps[2]
    page.answer.nth(2).click()
    assert page.value("location.hash") == "#token=2"
    assert sum(page.bars().values()) == pytest.approx(100, abs=0.1)
    page.page.get_by_role("slider", name="temperature").fill("0.05")
    expected = shares(recording.to_dict()["steps"][2], 0.05, 40, 0.95)
    assert list(page.bars().values())[: len(expected)] == pytest.approx(expected, abs=0.1)
    assert step.lens is not None
    cells = page.why.locator("ol").last.locator(".text")
    assert cells.all_text_contents() == [visible(text) for text in step.lens.texts]
    expect(page.page.get_by_text("This page has no model.")).to_be_visible()
    page.page.get_by_role("navigation", name="Views").get_by_role("button", name="Lens").click()
    expect(page.page.get_by_role("grid")).to_be_visible()
    page.show_file(page_file, "token=4")
    assert page.selected == 4


def test_a_greedy_run_shows_the_models_own_probabilities(open_page: OpenPage, run: Run, tmp_path: Path) -> None:
    greedy = run.model.watch("how are you?", look=CANDIDATES, do_sample=False, max_new_tokens=3)
    page = open_page()
    page.show_file(greedy.recording.save(tmp_path / "greedy.html"), "token=1")
    own = [100 * candidate.probability for candidate in greedy.why(1).candidates]
    assert list(page.bars().values())[:8] == pytest.approx(own[:8], abs=0.1)
    expect(page.why).to_contain_text("under the model: greedy took the best")
    expect(page.why).to_contain_text("greedy takes it: the best")
    assert page.why.get_by_text("out", exact=True).count() == 0
    page.why.locator("ol").first.locator(".row").nth(1).click()
    expect(page.why).to_contain_text("greedy takes the best instead")


def test_attention_and_the_prompts_lens_are_there_without_a_model(open_page: OpenPage, run: Run, tmp_path: Path) -> None:
    page = open_page()
    page.show_file(run.record(views=True).save(tmp_path / "run.html"), "view=attention&token=2&layer=1&head=0")
    attending = page.page.get_by_role("group", name="Tokens that attend").get_by_role("button")
    expect(attending).to_have_count(len(run.prompt_ids) + len(run.ids))
    query = len(run.prompt_ids) + 1  # where token 2 was chosen
    weights = run.attention(1, 0).weights[query][: query + 1]
    attended = page.page.get_by_role("list", name="Tokens that are attended to").get_by_role("listitem")
    shown = attended.evaluate_all("tokens => tokens.map(token => token.title)")[: query + 1]
    assert [float(re.sub("[<≈ %]", "", title)) / 100 for title in shown] == pytest.approx(weights.tolist(), abs=0.006)

    page.page.get_by_role("navigation", name="Views").get_by_role("button", name="Lens").click()
    page.page.get_by_label("the prompt's tokens too").check()
    grid = page.page.get_by_role("grid")
    grid.focus()
    page.page.keyboard.press("Home")
    cells = grid.locator('[data-column="0"] .text')
    expect(cells).to_have_text([visible(layer[0].text) for layer in run.reading.lens([0]).predictions])


def test_the_save_button_gives_the_same_bytes_as_python(
    open_page: OpenPage, address: str, recording: Recording, page_file: Path, tmp_path: Path
) -> None:
    page = open_page()
    page.show(address)
    page.drop(recording.save(tmp_path / "run.json"))
    expect(page.notice).to_have_text(re.compile("run.json is shown."))
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Save").click()
    assert download.value.suggested_filename == "run.html"
    assert Path(download.value.path()).read_bytes() == page_file.read_bytes()
    page.drop(page_file)
    expect(page.notice).to_have_text(re.compile("run.html is shown."))
    assert page.answer.count() == len(recording.steps)


def test_a_saved_page_opens_with_what_was_selected_and_names_views_that_need_a_model(
    open_page: OpenPage, address: str, recording: Recording, tmp_path: Path
) -> None:
    page = open_page()
    page.show(address)
    page.drop(recording.save(tmp_path / "run.json"))
    expect(page.notice).to_have_text(re.compile("run.json is shown."))
    page.answer.nth(1).click()
    page.why.locator("ol").first.locator(".row").nth(2).click()
    page.page.get_by_role("navigation", name="Views").get_by_role("button", name="Lens").click()
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Save").click()
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    page.show_file(saved)
    expect(page.page.get_by_role("grid")).to_be_visible()
    expect(page.why.locator(".token")).to_have_text(visible(recording.steps[1].token.text))
    expect(page.why.locator("ol").first.locator(".row").nth(2)).to_have_attribute("aria-expanded", "true")
    views = page.page.get_by_role("navigation", name="Views")
    expect(views.get_by_text("need the model, which a saved run has not:")).to_be_visible()
    reason = "This page has no model: it shows the Python that does it."
    for view in ("Step inside", "Patch", "Compare", "Tasks", "Parameters"):
        expect(views.get_by_role("button", name=view)).to_have_attribute("title", re.compile(re.escape(reason)))


def test_a_file_that_holds_no_recording_is_refused(open_page: OpenPage, page_file: Path, tmp_path: Path) -> None:
    page = open_page()
    page.show_file(page_file)
    answered = page.answer.count()
    whole = embedded_data(page_file.read_text("utf-8"))
    for name, content, reason in (
        ("a.json", "{", "it is not JSON."),
        ("b.json", '{"schema": "glassformer.trace/1"}', 'This is "glassformer.trace/1"; the studio opens'),
        ("d.json", json.dumps({**whole, "steps": [{}]}), "it is damaged: steps.0.token is missing or of another kind."),
        ("e.json", json.dumps({**whole, "layers": "all"}), "it is damaged: layers is missing or of another kind."),
        ("f.json", json.dumps({**whole, "stages": [{"name": "text"}]}), "it is damaged: stages.0.shape is missing"),
        ("c.html", "<p>hi</p><script>document.title = 1</script>", "it is a page without a recording."),
    ):
        (tmp_path / name).write_text(content, "utf-8")
        page.drop(tmp_path / name)
        expect(page.notice).to_contain_text(f"{name} cannot be opened: {reason}")
        assert page.answer.count() == answered
        assert page.page.title() == "Glassformer Studio"


def test_numbers_and_texts_are_written_as_javascript_writes_them(open_page: OpenPage) -> None:
    powers = [
        sign * digits * 10.0**exponent
        for sign in (1, -1)
        for digits in (1, 1.5, 123456789.123)
        for exponent in range(-12, 25)
    ]
    data = {
        "numbers": [*powers, 0.0, -0.0, 0.1 + 0.2, 5e-324, 1.7976931348623157e308, 2**53, 2**64 - 1, 7, True, None],
        "texts": ["é\n\t\x00\x7f\u2028\"\\/", "\ud83d", "😀", "</script><!--"],
        "10": 1, "9": {"b": [], "a": {}}, "😀": 0, "\uffff": 0,
    }  # fmt: skip
    written = open_page().page.evaluate(
        "text => JSON.stringify(JSON.parse(text), (_, v) => v && typeof v === 'object' && !Array.isArray(v)"
        " ? Object.fromEntries(Object.entries(v).sort(([a], [b]) => (a < b ? -1 : 1))) : v)",
        json.dumps(data),
    )
    assert javascript_json(data) == written
    assert javascript_json([float("nan"), float("inf")]) == "[null,null]"


def test_nothing_in_the_data_can_leave_its_element(open_page: OpenPage, recording: Recording, tmp_path: Path) -> None:
    escape = "</script><script>document.title = 'out'</script><!-- <script>"
    hostile = dataclasses.replace(recording, model=escape, prompt=escape, text=escape)
    assert embedded_data(saved_page(hostile.to_dict()))["model"] == escape
    page = open_page()
    page.show_file(hostile.save(tmp_path / "hostile.html"))
    expect(page.page.get_by_role("banner")).to_contain_text(escape)
    assert page.page.title() == "Glassformer Studio"


def test_a_recording_is_saved_in_the_other_forms_too(recording: Recording, tmp_path: Path) -> None:
    assert json.loads(recording.save(tmp_path / "run.json").read_text("utf-8"))["schema"] == Recording.SCHEMA
    assert "6 tokens" in recording.save(tmp_path / "run.txt").read_text("utf-8")
    with pytest.raises(InputError, match="in which form"):
        recording.save(tmp_path / "run.pdf")
