"""A conversation in the studio: answers that stream, are stopped, cut off and gone on with, branches, and links to them."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Route, expect

from glassformer.serving.http import recording_stream
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.patience import patience
from tests.serving.conftest import serving
from tests.studio.api import ask_with_seed, ids, other_rank, post, texts
from tests.studio.browser import OpenPage, visible

BEGINNING = 40  # tokens that are sent before an answer is held back
MANY = 200  # tokens; the tiny model has no room for many more


@pytest.fixture(scope="module")
def long_address(sources: tuple[ModelSource, ...]) -> Iterator[str]:
    """A server that writes long texts."""
    limits = Limits(seconds=300, stop_seconds=1, new_tokens=MANY)
    with serving(create_app(Registry(sources, limits), limits)) as address:
        yield address


def test_an_answer_is_streamed_and_is_the_one_that_the_api_records(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.set_field("The seed of the next text", 5)
    page.sample()
    page.set_field("Tokens of an answer, at most", 4)
    body = page.requested(lambda: page.ask("how are you?"))
    recording = post(address, "record", **body)
    assert (body["seed"], body["max_tokens"]) == (5, 4)
    expect(page.answer).to_have_text(texts(recording))
    prompt = page.page.get_by_role("region", name="Conversation").locator("p.tokens span")
    expect(prompt).to_have_text([visible(token["text"]) for token in recording["prompt_tokens"]])
    lens = page.why.locator("ol").nth(1).locator(".text")
    expect(lens).to_have_text([visible(text) for text in recording["steps"][0]["lens"]["texts"]])
    expect(page.page.get_by_role("banner")).to_contain_text("seed 5")
    page.answer.nth(3).click()
    assert sum(page.bars().values()) == pytest.approx(100, abs=0.1)


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Of an answer, the server sends no more than its beginning before this is set."""
    released, events = threading.Event(), recording_stream._events

    async def beginning(answer: Any) -> AsyncGenerator[bytes]:
        number = 0
        async for event in events(answer):
            while number >= BEGINNING and not released.is_set():
                await asyncio.sleep(0.01)
            number += 1
            yield event

    monkeypatch.setattr(recording_stream, "_events", beginning)
    return released


def test_a_long_answer_stays_small_and_can_be_stopped_and_gone_on_with(
    open_page: OpenPage, long_address: str, held_back: threading.Event
) -> None:
    page = open_page()
    page.show(long_address)
    page.set_field("Tokens of an answer, at most", MANY)
    page.page.get_by_role("slider").first.fill("0")  # greedy, the tiny model goes in a circle
    page.ask("tell me more")
    page.answer.nth(20).wait_for()
    page.answer.nth(20).evaluate("token => { token.dataset.kept = 'yes' }")
    page.page.get_by_role("button", name="Stop").click()
    expect(page.page.get_by_text(re.compile(r"Stopped after \d+ tokens\."))).to_be_visible()
    held_back.set()
    stopped = page.answer.count()
    assert 20 < stopped <= BEGINNING
    page.page.get_by_role("button", name="Read this token's").click()
    page.why.locator("ol").nth(1).wait_for()
    body = page.requested(page.page.get_by_role("button", name="Go on from there").click)
    assert len(body["prompt"]) > stopped
    assert body["max_tokens"] == MANY - stopped
    expect(page.answer).to_have_count(MANY)
    assert page.answer.nth(20).get_attribute("data-kept") == "yes", "earlier tokens were drawn again"
    assert page.value("document.querySelectorAll('*').length") < 10 * MANY, "500 tokens would be more than 5,000 elements"


def test_an_answer_that_is_cut_off_says_so_and_goes_on_from_its_ids(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    bodies: list[str] = []

    def cut(route: Route) -> None:
        body = {**route.request.post_data_json, "seed": 3}
        events = httpx.post(f"{address}/glass/record", json=body, timeout=patience(300)).text.split("\n\n")
        bodies.append("\n\n".join([*events[:3], events[3][:20]]))
        route.fulfill(body=bodies[-1], content_type="text/event-stream")

    page.page.route("**/glass/record", cut)
    page.sample()
    page.ask("hi")
    expect(page.alert).to_contain_text("The answer was cut off: the connection to the server was lost.")
    expect(page.answer).to_have_count(2)
    page.page.unroute("**/glass/record")
    body = page.requested(page.page.get_by_role("button", name="Go on from there").click)
    page.wait_until_written()
    rest = post(address, "record", **body)
    assert body["prompt"] == ids(rest)[: len(body["prompt"])]
    expect(page.answer).to_have_count(2 + len(rest["steps"]))
    for number, text in enumerate(texts(rest), 2):
        expect(page.answer.nth(number)).to_have_text(text)
    expect(page.alert).to_have_count(0)
    shown = page.answer.all_text_contents()
    again = open_page()
    again.show(address, page.value("location.hash.slice(1)"))
    expect(again.answer).to_have_text(shown)  # also what was drawn after the cut


def test_a_candidate_starts_a_branch_from_ids_and_a_link_restores_both(open_page: OpenPage, address: str) -> None:
    page = open_page()
    first = ask_with_seed(page, address)
    body = page.requested(lambda: page.go_on_instead(2, other_rank(first, 2)))
    page.wait_until_written()
    branch = post(address, "record", **body)
    candidates = first["steps"][2]["candidates"]
    rank = other_rank(first, 2)
    assert body["seed"] == 11
    assert body["prompt"] == [*ids(first)[: len(first["prompt_tokens"]) + 2], candidates["ids"][rank]]
    candidate = visible(candidates["texts"][rank])
    expect(page.branch("B")).to_have_text([candidate, *texts(branch)])
    expect(page.why.locator("li").filter(has_text="● by hand")).to_contain_text(candidate)
    expect(page.answer).to_have_text(texts(first))

    page.page.locator("body").click(position={"x": 2, "y": 300})
    page.page.keyboard.press("Alt+ArrowRight")
    expect(page.branch("B").nth(1)).to_have_attribute("aria-pressed", "true")
    page.page.keyboard.press("Alt+ArrowUp")
    expect(page.answer.nth(3)).to_have_attribute("aria-pressed", "true")
    page.page.keyboard.press("Alt+ArrowDown")
    expect(page.page.get_by_role("button", name="Branch B")).to_have_attribute("aria-pressed", "true")

    fragment = page.value("location.hash.slice(1)")
    again = open_page()
    again.show(address, fragment)
    expect(again.branch("B")).to_have_text([candidate, *texts(branch)])
    again.wait_until_written()
    expect(again.answer).to_have_text(texts(first))
    expect(again.branch("B").nth(1)).to_have_attribute("aria-pressed", "true")
    assert again.value("location.hash.slice(1)") == fragment
    for token in (2, 1, 0):  # what was chosen by hand, and what both answers begin with
        again.page.keyboard.press("Alt+ArrowLeft")
        lens = again.why.locator("ol").nth(1).locator(".text")
        expect(lens).to_have_text([visible(text) for text in first["steps"][token]["lens"]["texts"]])


@pytest.mark.sweep
def test_the_shipped_run_branches_too(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    shown = page.answer.count()
    body = page.requested(lambda: page.go_on_instead(1, 1))
    page.wait_until_written()
    assert (body["top_k"], body["top_p"], body["temperature"]) == (50, 0.95, 1)
    expect(page.branch("B").first).to_be_visible()
    assert page.answer.count() == shown


@pytest.mark.sweep
def test_an_encoder_decoders_answer_branches_too(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_label("The model that the next text is asked of").select_option("pair")
    page.page.get_by_role("slider").first.fill("0")
    page.page.get_by_role("textbox", name="A text to go on from").fill("the cat")  # it has no chat template
    first = post(address, "record", **page.requested(lambda: page.page.keyboard.press("Enter")))
    expect(page.answer).to_have_text(texts(first))
    page.wait_until_written()
    rank = other_rank(first, 1)
    body = page.requested(lambda: page.go_on_instead(1, rank))
    start, candidate = first["steps"][0]["token"]["id"], first["steps"][1]["candidates"]["ids"][rank]
    assert body["prompt"] == [token["id"] for token in first["prompt_tokens"]]
    assert body["forced_tokens"] == [[0, start], [1, candidate]]
    expect(page.branch("B")).to_have_text(texts(post(address, "record", **body))[1:])
    page.wait_until_written()


def test_a_conversation_goes_on_and_begins_anew(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.ask("how are you?")
    expect(page.page.get_by_role("button", name="New conversation")).to_be_visible()
    page.wait_until_written()
    first = page.answer.all_text_contents()
    body = page.requested(lambda: page.ask("and why?"))
    roles = [(message["role"], message["content"]) for message in body["prompt"]]
    assert [role for role, _ in roles] == ["user", "assistant", "user"]
    assert (roles[0][1], roles[2][1]) == ("how are you?", "and why?")
    earlier = page.page.get_by_role("region", name="Conversation").locator("dd")
    expect(earlier.first).to_have_text("how are you?")
    assert earlier.last.inner_text().strip() == roles[1][1].strip()
    expect(page.page.get_by_role("button", name=re.compile(r"\d+ tokens as above"))).to_be_visible()
    page.wait_until_written()
    second = page.answer.all_text_contents()
    page.page.get_by_role("button", name="Look into it").click()  # the turn before
    expect(page.answer).to_have_text(first)
    assert "turn=0" in page.value("location.hash")
    page.why.locator("ol").first.locator(".row").nth(1).click()
    expect(page.page.get_by_role("button", name="Go on from here")).to_have_count(0)  # the conversation went on already
    page.page.get_by_role("button", name="Look into it").click()
    expect(page.answer).to_have_text(second)
    assert "turn=" not in page.value("location.hash")
    page.page.get_by_role("button", name="New conversation").click()
    expect(page.page.get_by_text("A new conversation")).to_be_visible()
    body = page.requested(lambda: page.ask("hello"))
    assert len(body["prompt"]) == 1


def test_thinking_raw_and_a_model_that_only_reads(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_label("thinking").check()
    body = page.requested(lambda: page.ask("how are you?"))
    assert body["chat_template_kwargs"] == {"enable_thinking": True}
    page.wait_until_written()
    page.page.get_by_role("button", name="raw").click()
    expect(page.page.get_by_label("thinking")).to_have_count(0)
    page.page.get_by_role("textbox", name="A text to go on from").fill("the cat ")
    body = page.requested(lambda: page.page.keyboard.press("Enter"))
    assert (body["prompt"], body["raw"], "chat_template_kwargs" in body) == ("the cat ", True, False)
    page.wait_until_written()
    page.page.get_by_role("combobox", name="The model").select_option("encoder")
    expect(page.page.get_by_role("note")).to_contain_text("it reads text and writes none")


def test_a_link_that_makes_no_sense_opens_the_page(open_page: OpenPage, address: str) -> None:
    page = open_page()
    for link in (
        '[["hi"]]',
        "[[null,[[null,0,[],[null]],[0,99,[1],[null]]],0]]",
        "[[null,[[5,0,[7],[null]]],9]]",
        '[[["",null,false,null,1,1,0,4],[],0]]',
    ):
        page.show(address, f"run={link}&branch=7&token=3&turn=4")
        assert page.selected >= 0, link
        page.wait_until_written()


def test_what_is_typed_is_not_lost(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    box = page.page.get_by_role("textbox", name="A message to the model")
    views = page.page.get_by_role("navigation", name="Views")
    box.fill("half a thought")
    views.get_by_role("button", name="Tokens").click()
    views.get_by_role("button", name="Conversation").click()
    expect(box).to_have_value("half a thought")
    page.page.route("**/glass/record", lambda route: None)  # an answer that never begins
    page.page.keyboard.press("Escape")
    box.press("Enter")
    expect(box).to_have_value("")
    expect(page.page.get_by_text("The model is reading “half a thought”…")).to_be_visible()
    page.page.get_by_role("button", name="Stop").click()
    expect(box).to_have_value("half a thought")
