"""The studio's view Why: the explanation of the selected token, with the numbers that Python and the terminal have."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

import glassformer
from glassformer.page.format import visible
from glassformer.runtime.run import Run
from glassformer.see.recording import Recording
from tests.studio.browser import OpenPage


def test_it_shows_what_python_says_of_the_selected_token(open_page: OpenPage, address: str, tiny_qwen3: Path) -> None:
    page = open_page()
    page.show(address)
    page.ask("the cat sat")
    page.wait_until_written()
    page.answer.nth(1).click()
    with page.page.expect_response("**/glass/explain") as response:
        page.page.get_by_role("navigation", name="Views").get_by_role("button", name="Why", exact=True).click()
    asked = response.value.request.post_data_json
    assert isinstance(asked, dict)
    why = glassformer.load(tiny_qwen3).explain(
        asked["prompt"], answer_ids=asked["answer_ids"], contents=asked["contents"], token=asked["token"], evidence=True
    )
    assert (asked["contents"], asked["token"]) == (["the cat sat"], 1)
    article = page.page.get_by_role("article")
    expect(article.get_by_text("\n".join(why.sentences))).to_be_visible()
    shown = article.get_by_role("table").first.locator("tbody tr")
    expect(shown).to_have_count(len(why.words))
    for row, word in zip(shown.all(), why.words, strict=True):
        expect(row).to_contain_text("" if word.left_out is None else f"{word.left_out:+.1f}")
    page.answer.nth(2).click()
    expect(article.get_by_role("heading").first).to_have_text(re.compile(": why "))


def test_a_saved_page_holds_why_a_patch_and_a_tree_and_opens_at_the_token_that_tells(
    open_page: OpenPage, run: Run, tmp_path: Path
) -> None:
    page = open_page()
    recording = run.record(views=True)
    saved, told = recording.save(tmp_path / "run.html"), recording.pages["explain"].token
    page.show_file(saved)
    expect(page.answer.nth(told)).to_have_attribute("aria-pressed", "true")
    page.show_file(saved, "view=why")
    why = recording.pages["explain"].view
    article = page.page.get_by_role("article")
    expect(article.get_by_role("heading").first).to_have_text(f"{run.model.name}: why {visible(why.answer.text)}")
    shown = article.get_by_role("table").first.locator("tbody tr")
    expect(shown).to_have_count(len(why.words))
    for row, word in zip(shown.all(), why.words, strict=True):
        expect(row).to_contain_text("" if word.left_out is None else f"{word.left_out:+.1f}")
    page.page.get_by_role("navigation", name="Views").get_by_role("button", name="Tree", exact=True).click()
    expect(article.get_by_role("heading").first).to_contain_text("nodes after")


def test_a_page_that_was_saved_without_an_explanation_says_how_to_get_one(
    open_page: OpenPage, recording: Recording, tmp_path: Path
) -> None:
    page = open_page()
    page.show_file(recording.save(tmp_path / "run.html"), "view=why&token=1")
    expect(page.page.get_by_text("This page has no model, and was saved without an explanation.")).to_be_visible()
    expect(page.page.get_by_text("run.explain(1, evidence=True)")).to_be_visible()
