"""Whatever a prompt, a model or a token says, the page shows it as text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

from glassformer.see.recording import RecordedStep, Recording
from tests.studio.browser import OpenPage, StudioPage

HOSTILE = (
    "<script>document.title='out'</script>", "</script><script>document.title='out'</script>", "<!--", "--><b>b</b>", "]]>",
    '<img src=x onerror="document.title=1">', "<svg/onload=document.title=1>", "<iframe src=javascript:document.title=1>",
    "<style>*{display:none}</style>", "</style><b>", "<a href=javascript:document.title=1>x</a>", "<base href=//evil.test>",
    "<meta http-equiv=refresh content=0>", "<template><b>", "<textarea>", "</textarea></title><b>", "{@html '<b>'}",
    "{{7*7}}", "${document.title=1}", "`${1}`", "javascript:document.title=1", "\"'><b onmouseover=document.title=1>",
    "' onclick='1", "&lt;b&gt;&amp;", "\u202eexe.txt\u202c", "a\u200bb\ufeff", "\x00\x1b[31m\x07", "%3Cscript%3E",
    "__proto__", "constructor",
)  # fmt: skip
assert len(HOSTILE) == 30
AWKWARD = {
    " ": "·",
    "\n": "⏎",
    "\\xf0\\x9f": "\\xf0\\x9f",
    "مرحبا": "مرحبا",
    "x" * 300: "x" * 300,
    "\t": "⇥",
    "\xa0": "\\u00a0",
    "": "∅",
}
ELEMENTS = "document.querySelectorAll('img, iframe, style, base, a, template, script, [onload], [onmouseover]').length"


def recording_of(recording: Recording, texts: tuple[str, ...], everything: str) -> Recording:
    """A recording in which every text is one of these, and the model and the prompt are all of them."""

    def step(number: int, text: str) -> RecordedStep:
        first = recording.steps[0]
        assert first.lens is not None
        texts_of_candidates = (text, *first.candidates.texts[1:])
        return replace(
            first, token=replace(first.token, position=number, text=text, id=first.candidates.ids[0]), rank=1,
            candidates=replace(first.candidates, texts=texts_of_candidates),
            lens=replace(first.lens, texts=tuple(text for _ in first.lens.texts)),
        )  # fmt: skip

    tokens = tuple(replace(recording.prompt_tokens[0], position=at, text=text) for at, text in enumerate(texts))
    return replace(
        recording, model=everything, executor=everything, prompt=everything, prompt_tokens=tokens, text=everything,
        steps=tuple(step(number, text) for number, text in enumerate(texts)),
        settings={**recording.settings, everything: everything},
    )  # fmt: skip


def escaped(text: str) -> str:
    """As the page writes it: what acts on a line of text is spelled out."""
    text = text.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")
    acting = "[\x00-\x1f\x7f-\xa0\u2000-\u200f\u2028-\u202f\u205f-\u2069\u3000\ufeff]"
    return re.sub(acting, lambda match: f"\\u{ord(match[0]):04x}", text)


def assert_still_text(page: StudioPage, elements: int) -> None:
    assert page.page.title() == "Glassformer Studio"
    assert page.value(ELEMENTS) == elements


@pytest.mark.parametrize("host", ["saved page", "server"])
def test_hostile_strings_stay_text_everywhere(
    open_page: OpenPage, address: str, recording: Recording, tmp_path: Path, host: str
) -> None:
    hostile = recording_of(recording, HOSTILE, " ".join(HOSTILE))
    page = open_page()
    if host == "saved page":
        page.show_file(hostile.save(tmp_path / "run.html"))
    else:
        page.show(address)
        page.drop(hostile.save(tmp_path / "run.json"))
    expect(page.answer).to_have_text([escaped(text) for text in HOSTILE])
    elements = page.value(ELEMENTS)
    assert elements == (3 if host == "saved page" else 1), "the page's own scripts"
    expect(page.page.get_by_role("banner")).to_contain_text(HOSTILE[0])
    for number in range(0, len(HOSTILE), 3):
        page.answer.nth(number).click()
        expect(page.why.locator(".token")).to_have_text(escaped(HOSTILE[number]))
        assert next(iter(page.bars())) == escaped(HOSTILE[number])
    for kind in ("Python", "command", "curl"):
        page.why.get_by_role("button", name=kind).click()
        expect(page.why.locator("pre")).to_contain_text("onerror")
    views = page.page.get_by_role("navigation", name="Views").get_by_role("button")
    for number in range(views.count()):
        views.nth(number).click()
        assert_still_text(page, elements)
    page.page.keyboard.press("Control+k")
    page.page.keyboard.type("<img")
    expect(page.page.get_by_role("dialog").get_by_role("option").first).to_contain_text("onerror")
    assert_still_text(page, elements)


def test_awkward_tokens_are_visible_on_a_dark_phone(open_page: OpenPage, recording: Recording, tmp_path: Path) -> None:
    page = open_page(390, 844, dark=True)
    page.show_file(recording_of(recording, tuple(AWKWARD), "".join(AWKWARD)).save(tmp_path / "run.html"))
    assert page.answer.all_text_contents() == list(AWKWARD.values())
    for token in page.answer.all():
        box = token.bounding_box()
        assert box is not None
        assert box["width"] >= 8
        assert box["x"] + box["width"] <= 390
    for number in range(len(AWKWARD)):
        page.answer.nth(number).click()
        assert page.value("document.documentElement.scrollWidth") == 390
