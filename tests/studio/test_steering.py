"""Steering in the studio: sliders for the vectors that a server has, and requests that name them."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.studio.browser import OpenPage

CALM = {"name": "calm", "sites": ["blocks.1.residual"], "problem": None}
FOREIGN = {"name": "foreign", "sites": ["blocks.9.residual"], "problem": "it was made with another model."}


def with_vectors(page: Page, *vectors: Any) -> list[Any]:
    """Let the server have these vectors; gives how each text that is asked for from now on is steered.

    Texts are written without them: what the server does with a vector is its own tests' business.
    """
    answer = json.dumps({"schema": "glassformer.steering-vectors/1", "model": "tiny", "vectors": vectors})
    page.route("**/glass/steering", lambda route: route.fulfill(body=answer, content_type="application/json"))
    steered: list[Any] = []

    def write(route: Route) -> None:
        body = dict(route.request.post_data_json)
        steered.append(body.pop("steer", None))
        route.continue_(post_data=json.dumps(body))

    page.route("**/glass/record", write)
    return steered


def test_a_strength_is_sent_kept_in_the_link_and_taken_by_branches(open_page: OpenPage, address: str) -> None:
    page = open_page()
    steered = with_vectors(page.page, CALM, FOREIGN)
    page.show(address)
    page.page.get_by_text("Steering: none").click()
    slider = page.page.get_by_role("slider", name="calm")
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("-10", "10")
    expect(page.page.get_by_role("slider", name="foreign")).to_have_count(0)
    page.requested(lambda: page.ask("hi"))
    page.wait_until_written()
    slider.fill("-3.5")
    expect(page.page.get_by_text("Steering: calm −3.5")).to_be_visible()
    page.requested(lambda: page.ask("how are you?"))
    page.wait_until_written()
    page.requested(lambda: page.go_on_instead(1, 3))
    page.wait_until_written()
    expected = [{"name": "calm", "strength": -3.5}]
    assert steered == [None, expected, expected]
    link = page.value("location.href")
    page.page.get_by_role("button", name="Steer no more").click()
    expect(page.page.get_by_text("Steering: none")).to_be_visible()
    steered.clear()
    page.page.goto("about:blank")
    page.page.goto(link)
    expect(page.branch("B").first).to_be_visible()
    page.wait_until_written()
    assert steered == [None, expected, expected]


def test_a_server_without_vectors_has_no_sliders(open_page: OpenPage, address: str) -> None:
    page = open_page()
    with page.page.expect_response("**/glass/steering"):
        page.show(address)
    expect(page.page.get_by_text("Enter runs it")).to_be_visible()
    expect(page.page.get_by_text("Steering:")).to_have_count(0)
