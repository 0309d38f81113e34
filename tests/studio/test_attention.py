"""The studio's attention view: every head at once, and one head large, of all three shapes of models."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Locator, expect

from tests.studio.api import post
from tests.studio.browser import OpenPage, StudioPage, visible

TEXT = "the cat sat on the mat"
ASKED = "The model that the next text is asked of"


def show(page: StudioPage, address: str, **fragment: Any) -> None:
    page.page.goto("about:blank")
    page.page.goto(f"{address}/#{urlencode({'token': 0, **fragment})}")
    page.page.get_by_role("region", name="All heads").wait_for()


def shown_weights(page: StudioPage) -> list[float]:
    """The numbers beside the tokens that are attended to, from their titles; None: masked."""
    titles = attended(page).evaluate_all("tokens => tokens.map(token => token.title)")
    return [float(title.removesuffix(" %").removeprefix("<")) / 100 for title in titles if not title.startswith("masked")]


def attended(page: StudioPage) -> Locator:
    return page.page.get_by_role("list", name="Tokens that are attended to").get_by_role("listitem")


def attending(page: StudioPage) -> Locator:
    return page.page.get_by_role("group", name="Tokens that attend").get_by_role("button")


def wait_for_answer(page: StudioPage) -> None:
    """Until another run than the shipped one is shown, of a model with fewer scores."""
    expect(page.page.get_by_role("navigation", name="The journey from text to token")).not_to_contain_text("49,152")
    page.wait_until_written()


def wait_until_exact(page: StudioPage) -> None:
    """Until the head's exact weights have taken the place of those of one byte."""
    expect(page.page.get_by_role("group", name="Tokens that attend")).to_have_attribute("data-exact", "true")


def test_a_head_shows_the_weights_of_the_api(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, view="attention", text=TEXT, layer=1, head=2, position=4)
    wait_until_exact(page)
    data = post(address, "attention", prompt=TEXT, raw=True, layer=1, head=2)
    assert attending(page).locator(".text").all_text_contents() == [visible(text) for text in data["queries"]]
    assert shown_weights(page) == pytest.approx(data["weights"][4][:5], rel=0.06, abs=2e-5)
    assert attended(page).nth(5).get_attribute("title") == "masked or hidden"
    expect(page.page.locator("section svg line")).to_have_count(sum(weight >= 0.005 for weight in data["weights"][4]))

    attended(page).nth(1).hover()  # whoever attends to that token
    queries = attending(page).locator(".number").all_text_contents()
    assert queries[0] == ""
    expect(page.page.locator("section svg line")).to_have_count(sum(row[1] >= 0.005 for row in data["weights"]))

    page.page.mouse.move(1, 1)
    page.page.get_by_label("hide the first token").check()
    assert attended(page).first.get_attribute("title") == "masked or hidden"


def test_heads_and_tokens_are_walked_by_keys_and_kept_in_the_address(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, view="attention", text=TEXT, layer=0, head=0, position=2)
    page.page.get_by_role("group", name="Heads, a thumbnail each").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowUp", "ArrowUp"):
        page.page.keyboard.press(key)
    expect(page.page.get_by_role("region", name="Layer 0, head 1")).to_be_visible()
    attending(page).nth(2).focus()
    page.page.keyboard.press("ArrowDown")
    expect(attending(page).nth(3)).to_be_focused()
    fragment = page.value("location.hash")
    assert "layer=0&head=1" in fragment
    assert "position=3" in fragment

    page.page.get_by_role("button", name="matrix").click()
    cells = page.page.get_by_role("group", name="Attention of each token")
    cells.focus()
    page.page.keyboard.press("ArrowRight")
    page.page.keyboard.press("ArrowDown")
    weights = post(address, "attention", prompt=TEXT, raw=True, layer=0, head=1)
    tokens = f"{visible(weights['queries'][4])} → {visible(weights['keys'][1])}"
    expect(page.page.get_by_role("status").filter(has_text=tokens)).to_be_visible()


def test_a_thumbnail_is_painted_from_the_weights_and_opens_by_a_click(open_page: OpenPage, address: str) -> None:
    page = open_page()
    show(page, address, view="attention", text=TEXT, layer=0, head=0)
    page.page.get_by_label("show small weights").uncheck()
    canvas = page.page.get_by_role("region", name="All heads").locator("canvas")
    data = post(address, "attention", prompt=TEXT, raw=True, layer=1, head=1)
    keys, pitch, side = len(data["keys"]), 44, 40  # the largest thumbnails, with the gap and without
    by_weight = sorted(range(1, keys), key=lambda query: data["weights"][query][query])
    pixels = canvas.evaluate(  # at once: a browser warns of many reads
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, 88).data]"
    )
    width = len(pixels) // 4 // 88
    brightness = []
    for query in (by_weight[0], by_weight[-1]):
        middle = int(pitch + side * (query + 0.5) / keys)
        brightness.append(sum(pixels[4 * (middle * width + middle) :][:3]))
    assert brightness[0] > brightness[1], "more attention is darker on light paper"
    canvas.click(position={"x": pitch + 5, "y": pitch + 5})
    expect(page.page.get_by_role("region", name="Layer 1, head 1")).to_be_visible()


def test_a_run_is_read_with_its_answer_and_follows_the_selected_token(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.ask("hi")
    wait_for_answer(page)
    answer = page.answer.all_text_contents()
    page.answer.last.click()
    page.page.get_by_role("button", name="Attention", exact=True).click()
    attending(page).first.wait_for()
    tokens = attending(page).locator(".text").all_text_contents()
    assert tokens[-len(answer) :] == answer
    assert len(tokens) > len(answer)
    expect(attending(page).nth(-2)).to_have_attribute("aria-pressed", "true")  # where the last token was chosen
    head = page.page.get_by_role("region", name="Layer")
    expect(head).to_contain_text(f"from {tokens[-2]}, where {answer[-1]} was chosen")
    attending(page).nth(len(tokens) - len(answer)).click()
    assert "token=1" in page.value("location.hash")
    page.page.get_by_role("button", name="Step inside").click()
    expect(page.page.get_by_text(f"at token {len(tokens) - len(answer)}")).to_be_visible()  # the same one


def test_an_encoder_has_no_mask(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_label(ASKED).select_option("encoder")
    fragment = urlencode({"token": 0, "view": "attention", "text": TEXT, "position": 0, "layer": 0, "head": 0})
    page.value(f"location.hash = '{fragment}'")
    wait_until_exact(page)
    assert attended(page).locator(".text").all_text_contents()[0] == "[CLS]"
    data = post(address, "attention", model="encoder", prompt=TEXT, raw=True, layer=0, head=0)
    assert shown_weights(page) == pytest.approx(data["weights"][0], rel=0.06, abs=2e-5)
    expect(page.page.locator("section .masked")).to_have_count(0)


def test_an_encoder_decoder_has_cross_attention_and_its_encoders(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.show(address)
    page.page.get_by_label(ASKED).select_option("pair")
    page.page.get_by_role("button", name="raw").click()
    page.page.get_by_role("textbox", name="A text to go on from").fill(TEXT)
    page.page.keyboard.press("Enter")
    wait_for_answer(page)
    answer = page.answer.all_text_contents()
    page.page.get_by_role("button", name="Attention", exact=True).click()
    source = post(address, "look", model="pair", prompt=TEXT, raw=True)
    expect(attending(page)).to_have_count(1 + len(answer))
    page.page.get_by_role("button", name="cross-attention").click()
    expect(attended(page)).to_have_count(len(source["tokens"]))
    expect(attending(page)).to_have_count(1 + len(answer))
    assert "part=cross" in page.value("location.hash")
    page.page.get_by_role("button", name="the encoder's").click()
    expect(attending(page)).to_have_count(len(source["tokens"]))
    expect(page.page.locator("section .masked")).to_have_count(0)


def test_a_refusal_is_said_in_place(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.page.goto(f"{address}/#{urlencode({'token': 0, 'view': 'attention', 'text': 'the cat ' * 300})}")
    expect(page.alert).to_contain_text("do not fit into the model's context")
    expect(page.page.get_by_text("model.read(")).to_be_visible()


def test_reading_says_how_long_it_takes_and_can_be_cancelled(open_page: OpenPage, address: str) -> None:
    page = open_page()
    page.page.route("**/glass/attention-maps", lambda route: None)  # an answer that never comes
    page.page.goto(f"{address}/#{urlencode({'token': 0, 'view': 'attention', 'text': TEXT})}")
    status = page.page.get_by_role("region", name="Attention").get_by_role("status")
    expect(status).to_have_text("reading…")
    page.page.get_by_role("button", name="Cancel").click()  # offered after a second
    expect(status).to_have_text("Reading was cancelled.")
    page.page.unroute("**/glass/attention-maps")
    page.page.get_by_role("button", name="Read it after all").click()
    expect(page.page.get_by_role("region", name="All heads")).to_be_visible()


def test_of_a_long_text_some_layers_are_shown_at_a_time(
    open_page: OpenPage, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.see.attention.MAX_MAPS_BYTES", 1000)  # one layer of this text
    text = f"{TEXT}, and so did the dog"
    maps = post(address, "attention-maps", prompt=text, raw=True, first=1)
    assert len(maps["windows"]) == 1
    page = open_page()
    show(page, address, view="attention", text=text)
    overview = page.page.get_by_role("region", name="All heads")
    expect(overview).to_contain_text(f"layers 0 to 0 of {maps['layers']}")
    overview.get_by_role("button", name="Later").click()
    expect(overview).to_contain_text(f"layers 1 to 1 of {maps['layers']}")
    show(page, address, view="attention", text=text, layer=2, head=1)
    expect(page.page.get_by_role("region", name="Layer 2, head 1")).to_be_visible()
