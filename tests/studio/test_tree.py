"""The studio's tree: the branches of an answer, and the likeliest continuations, held against the API's numbers."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.studio.api import ask_with_seed, ids, other_rank, post, texts
from tests.studio.browser import OpenPage, visible


def flat(node: dict[str, Any]) -> list[dict[str, Any]]:
    """A node's descendants, each before its own."""
    return [part for child in node["children"] for part in (child, *flat(child))]


def test_branches_share_what_they_have_in_common(open_page: OpenPage, address: str) -> None:
    page = open_page()
    first = ask_with_seed(page, address)
    body = page.requested(lambda: page.go_on_instead(2, other_rank(first, 2)))
    second = post(address, "record", **body)
    page.page.get_by_role("button", name="Tree").click()
    tree = page.page.get_by_role("region", name="The branches of this answer")
    groups = tree.get_by_role("group")
    expect(groups).to_have_count(3)
    candidate = first["steps"][2]["candidates"]["texts"][other_rank(first, 2)]
    for group, shown in enumerate((texts(first)[:2], texts(first)[2:], [visible(candidate), *texts(second)])):
        expect(groups.nth(group).locator(".text")).to_have_text(shown)
    heights = groups.nth(1).locator(".bar").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.height))")
    assert heights == pytest.approx([100 * 2 ** -step["surprisal"] for step in first["steps"][2:]], abs=0.01)

    groups.nth(2).get_by_role("button").first.click()
    page.page.keyboard.press("ArrowLeft")  # into what both have in common
    expect(groups.nth(0).get_by_role("button").nth(1)).to_be_focused()
    page.page.keyboard.press("ArrowUp")
    page.page.keyboard.press("ArrowRight")
    expect(groups.nth(1).get_by_role("button").first).to_be_focused()
    expect(page.why.locator(".token")).to_have_text(texts(first)[2])


def test_the_likeliest_continuations_are_the_apis_and_can_be_gone_on_from(open_page: OpenPage, address: str) -> None:
    page = open_page()
    first = ask_with_seed(page, address)
    page.page.get_by_role("button", name="Tree").click()
    page.page.get_by_label("width").fill("2")
    page.page.get_by_label("depth").fill("2")
    page.page.get_by_role("button", name="Show").click()
    rows = page.page.get_by_role("region", name="The likeliest continuations").locator("[data-ids]")
    prompt = ids(first)[: len(first["prompt_tokens"])]
    nodes = flat(post(address, "tree", model="tiny", prompt=prompt, width=2, depth=2)["root"])
    expect(rows.locator(".text")).to_have_text([visible(node["text"]) for node in nodes])
    widths = rows.locator(".bar").evaluate_all("bars => bars.map(bar => parseFloat(bar.style.width))")
    assert widths == pytest.approx([100 * node["probability"] for node in nodes], abs=0.01)

    rows.first.focus()
    page.page.keyboard.press("ArrowDown")
    page.page.keyboard.press("Enter")
    body = page.requested(page.page.get_by_role("button", name="Go on from here").click)
    first_node, second_node = nodes[:2]
    assert (body["prompt"], body["forced_tokens"]) == ([*prompt, *first_node["ids"]], [[0, second_node["id"]]])
    page.page.get_by_role("button", name="Conversation").click()
    page.wait_until_written()
    begun = [visible(node["text"]) for node in (first_node, second_node)]
    for number, text in enumerate(begun):
        expect(page.branch("B").nth(number)).to_have_text(text)
