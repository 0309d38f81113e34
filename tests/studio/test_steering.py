"""Steering in the studio: sliders for the vectors that a server has, and requests that name them."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.studio.browser import OpenPage

CALM = {"name": "calm", "sites": ["blocks.1.residual"], "problem": None}
FOREIGN = {"name": "foreign", "sites": ["blocks.9.residual"], "problem": "it was made with another model."}


def with_vectors(page: Page, *vectors: Any) -> None:
    """Let the server have these vectors, and write texts without them: what it does with them is its own tests' business."""
    answer = json.dumps({"schema": "glassformer.steering-vectors/1", "model": "tiny", "vectors": vectors})
    page.route("**/glass/steering", lambda route: route.fulfill(body=answer, content_type="application/json"))

    def unsteered(route: Route) -> None:
        body = {name: value for name, value in (route.request.post_data_json or {}).items() if name != "steer"}
        route.continue_(post_data=json.dumps(body))

    page.route("**/glass/record", unsteered)


def test_a_strength_is_sent_kept_in_the_link_and_taken_by_branches(open_page: OpenPage, address: str) -> None:
    page = open_page()
    with_vectors(page.page, CALM, FOREIGN)
    page.show(address)
    page.page.get_by_text("Steering: none").click()
    slider = page.page.get_by_role("slider", name="calm")
    assert (slider.get_attribute("min"), slider.get_attribute("max")) == ("-10", "10")
    expect(page.page.get_by_role("slider", name="foreign")).to_have_count(0)
    assert "steer" not in page.requested(lambda: page.ask("hi"))
    page.wait_until_written()
    slider.fill("-3.5")
    expect(page.page.get_by_text("Steering: calm −3.5")).to_be_visible()
    expected = [{"name": "calm", "strength": -3.5}]
    assert page.requested(lambda: page.ask("how are you?"))["steer"] == expected
    page.wait_until_written()
    assert page.requested(lambda: page.go_on_instead(1, 3))["steer"] == expected
    page.wait_until_written()
    link = page.value("location.href")
    page.page.get_by_role("button", name="Steer no more").click()
    expect(page.page.get_by_text("Steering: none")).to_be_visible()
    page.page.goto("about:blank")
    with page.page.expect_request(lambda request: "how are you?" in (request.post_data or "")) as request:
        page.page.goto(link)
    assert request.value.post_data_json["steer"] == expected
    page.wait_until_written()


def test_a_server_without_vectors_has_no_sliders(open_page: OpenPage, address: str) -> None:
    page = open_page()
    with page.page.expect_response("**/glass/steering"):
        page.show(address)
    expect(page.page.get_by_text("Enter runs it")).to_be_visible()
    expect(page.page.get_by_text("Steering:")).to_have_count(0)
