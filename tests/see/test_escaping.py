"""Texts from anywhere on the screen: nothing acts on the terminal, and what is invisible has a picture."""

from __future__ import annotations

import json
import shutil
import unicodedata
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glassformer.page.document import Heading, Page, Preformatted, escape_page
from glassformer.page.format import escape_control, reveal, tail, to_json, visible
from glassformer.page.html import html_document
from glassformer.page.terminal import TerminalPage, plain_text
from tests.cli.test_cli import glass
from tests.see.models import both
from tests.see.test_page import NASTY, PAGE

HOSTILE = "\x1b]0;title\x07\x9b2J\u202e\u2066\u2028\r"


def replaced(value: Any) -> Any:
    """A page in which each hostile tag is a hostile sequence for terminals."""
    if isinstance(value, str):
        return value.replace(NASTY, HOSTILE)
    if isinstance(value, tuple):
        return tuple(map(replaced, value))
    if is_dataclass(value):
        return type(value)(*(replaced(getattr(value, field.name)) for field in fields(value)))  # type: ignore[misc]
    return value


def assert_harmless(text: str) -> None:
    assert not [letter for letter in text if unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cs") and letter != "\n"]
    assert not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def test_no_part_of_a_page_acts_on_the_terminal() -> None:
    page = replaced(PAGE)
    for text in (plain_text(TerminalPage(page), 120), html_document(page)):
        assert_harmless(text)
        assert r"\x1b]0;title\x07\x9b2J\u202e" in text


def test_only_paragraphs_have_several_lines() -> None:
    page = escape_page(Page("a\nb", (Heading("a\nb"), Preformatted("a\n\tb"))))
    assert page == Page("a⏎b", (Heading("a⏎b"), Preformatted("a\n\tb")))


def test_a_heading_is_not_markup() -> None:
    assert plain_text(TerminalPage(Page("", (Heading("[red]model[/x]"),))), 60).startswith("[red]model[/x] ──")


@pytest.mark.parametrize(
    ("text", "picture"),
    [
        ("a\xa0b", "a⍽b"),
        ("\u202eabc", r"\u202eabc"),
        ("a\u200bb\u200d", r"a\u200bb\u200d"),
        ("\ufeff", r"\ufeff"),
        ("\u3000", r"\u3000"),
        ("❤\ufe0f", r"❤\ufe0f"),
        ("\u3164", r"\u3164"),
        ("\U000e0041", r"\U000e0041"),
        ("\ud800", r"\ud800"),
        (" a\n\t", "␣a⏎⇥"),
        ("", "∅"),
    ],
)
def test_invisible_characters_have_a_picture(text: str, picture: str) -> None:
    assert visible(text) == picture


def test_line_breaks_and_spaces_of_a_longer_text_stay() -> None:
    assert reveal("a b\n\tc\xa0") == "a b\n\tc⍽"
    assert tail("how\xa0are\nyou", 40) == "how⍽are⏎you"
    assert tail(" \n", 40) == "␣⏎"


@given(st.text())
def test_any_text_is_harmless_in_every_form(text: str) -> None:
    for shown in (escape_control(text), reveal(text), visible(text), tail(text, 20)):
        assert_harmless(shown.replace("\t", ""))
        shown.encode()
    line = to_json(text)
    assert_harmless(line)
    assert json.loads(line) == text


@pytest.mark.parametrize("verb", ["look", "tree", "trace", "lens"])
def test_invisible_characters_of_a_prompt_are_seen(verb: str) -> None:
    model = both("gpt2").model
    prompt = "no\xa0break \u202e\u200b"
    view = {
        "look": model.look,
        "tree": lambda text: model.tree(text, width=1, depth=1),
        "trace": lambda text: model.read(text).trace(),
        "lens": lambda text: model.read(text).lens(),
    }[verb](prompt)
    for everything in (False, True):
        text = plain_text(TerminalPage(view.page(everything)), 120)
        assert_harmless(text)
        assert not set(text) & set("\xa0\u200b")
    if verb in ("look", "tree"):
        assert r"no⍽break \u202e\u200b" in text


@pytest.mark.parametrize("words", [("look", "Hi", "-m"), ("run", "Hi", "-n", "2", "-m"), ("models", "params")])
def test_a_folders_name_does_not_reach_the_terminal_raw(words: tuple[str, ...], tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_qwen3, tmp_path / "evil\x1b]0;title\x07[red]\u202e"))
    done = glass(*words, str(folder), COLUMNS="500")
    assert done.returncode == 0
    for text in (done.stdout, done.stderr):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert r"evil\x1b]0;" in done.stdout + done.stderr


def test_an_error_names_a_hostile_file_harmlessly(tmp_path: Path) -> None:
    (tmp_path / "evil\x1b[2J.gguf").write_bytes(b"not a model")
    done = glass("run", "Hi", "-m", str(tmp_path / "evil\x1b[2J.gguf"))
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
