"""What leaves the page: snippets that write the text again, and links that restore the view."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import expect

import glassformer
from glassformer.see.recording import CANDIDATES, Recording
from glassformer.serving.http.app import create_app
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience
from tests.serving.conftest import serving
from tests.studio.browser import OpenPage, StudioPage

PROMPT = '\u202e\xa0it\'s "5 $HOME" `x` \\n\n- é 😀'


@pytest.fixture(scope="module")
def awkward(tiny_qwen3: Path) -> Recording:
    """A run with settings of every kind and a prompt that wants quoting."""
    model = glassformer.load(tiny_qwen3)
    settings = {
        "do_sample": True, "temperature": 0.7, "top_p": 0.9, "seed": 11, "max_new_tokens": 5, "repetition_penalty": 1.3,
        "stop_strings": ["it's over"],
    }  # fmt: skip
    return model.watch(PROMPT, look=CANDIDATES, **settings).recording


@pytest.fixture(scope="module")
def own_address(tiny_qwen3: Path) -> Iterator[str]:
    """A server whose model has the name that the recording names."""
    with serving(create_app(Registry([ModelSource(str(tiny_qwen3), lambda: glassformer.load(tiny_qwen3))]))) as address:
        yield address


def copied(page: StudioPage) -> str:
    text: str = page.value("navigator.clipboard.readText()")
    return text


def ran(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=patience(300))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_what_is_copied_writes_the_same_text(
    open_page: OpenPage, own_address: str, awkward: Recording, tmp_path: Path
) -> None:
    page = open_page()
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.show(own_address)
    page.drop(awkward.save(tmp_path / "run.json"))
    expect(page.notice).to_have_text(re.compile("run.json is shown"))
    snippets = {}
    for kind in ("Python", "command", "curl"):
        page.why.get_by_role("button", name=kind).click()
        expect(page.notice).to_have_text(re.compile(f"Copied as {kind}."))
        snippets[kind] = copied(page)
        expect(page.why.locator("pre")).to_have_text(snippets[kind], use_inner_text=False)
    command = snippets["command"].replace("glass", f"{shlex.quote(sys.executable)} -m glassformer", 1)
    with ThreadPoolExecutor() as together:
        written = list(together.map(ran, [[sys.executable, "-c", snippets["Python"]], ["bash", "-c", command]]))
    assert written == [awkward.text + "\n"] * 2
    assert not re.search("[\u202e\xa0]", "".join(snippets.values())), "what is pasted is what was seen"
    assert f"curl {own_address}/glass/run " in snippets["curl"]
    assert json.loads(ran(["bash", "-c", snippets["curl"] + " --silent"]))["text"] == awkward.text


def test_a_shared_link_restores_what_is_shown(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.page.goto(f"{address}/#view=lens&token=5")
    page.why.locator(".token").wait_for()
    page.page.get_by_role("button", name="Share").click()
    expect(page.notice).to_have_text(re.compile("A link to what is shown was copied."))
    link = copied(page)
    assert re.fullmatch(re.escape(address) + r"/#view=lens&shown=[0-9a-f]{8}&token=5", link)
    other = open_page()
    other.page.goto(link)
    expect(other.page.get_by_role("region", name="Lens")).to_be_visible()
    expect(other.why.locator(".token")).to_have_text(page.why.locator(".token").text_content() or "")
    expect(other.notice).to_have_text("")


def test_a_run_from_a_file_is_there_again_after_a_reload(
    open_page: OpenPage, address: str, recording: Recording, tmp_path: Path
) -> None:
    page = open_page()
    page.show(address)
    page.drop(recording.save(tmp_path / "run.json"))
    expect(page.notice).to_have_text(re.compile("run.json is shown"))
    page.answer.nth(3).click()
    shown = page.answer.all_text_contents()
    assert re.search("shown=[0-9a-f]{8}", page.value("location.hash"))
    page.page.reload()
    expect(page.answer).to_have_text(shown)
    assert page.selected == 3
    expect(page.notice).to_have_text("")


def test_a_link_to_another_servers_run_says_so(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address, "shown=0123abcd&token=3")
    expect(page.notice).to_contain_text("This link is to a run that this page does not have")
    page.notice.get_by_role("button", name="Dismiss").click()
    expect(page.notice).to_have_text("")


def test_an_address_that_is_typed_in_without_a_token_keeps_the_one_that_is_selected(
    open_page: OpenPage, address: str
) -> None:
    page = open_page()
    page.show(address, "token=2")
    token = page.answer.nth(2).text_content() or ""
    expect(page.why.locator(".token")).to_have_text(token)
    page.value("void (location.hash = '#view=lens')")
    expect(page.page.get_by_role("grid")).to_be_visible()
    expect(page.why.locator(".token")).to_have_text(token)
