"""Steering in the studio: sliders for the vectors that a server has, and requests that name them."""

from __future__ import annotations

import json
from pathlib import Path
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
    return steering_of(page, "record")


def steering_of(page: Page, view: str) -> list[Any]:
    """How each request to a view is steered from now on; the server, which has no such vector, is asked without."""
    steered: list[Any] = []

    def write(route: Route) -> None:
        body = dict(route.request.post_data_json)
        steered.append(body.pop("steer", None))
        route.continue_(post_data=json.dumps(body))

    page.route(f"**/glass/{view}", write)
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


def test_views_of_a_steered_run_are_steered_as_it_was(open_page: OpenPage, address: str, tmp_path: Path) -> None:
    page = open_page()
    with_vectors(page.page, CALM)
    asked = {view: steering_of(page.page, view) for view in ("attention-maps", "attention", "lens", "inside")}
    page.show(address)
    page.page.get_by_text("Steering: none").click()
    page.page.get_by_role("slider", name="calm").fill("2")
    page.requested(lambda: page.ask("hi"))
    page.wait_until_written()
    page.page.get_by_role("slider", name="calm").fill("5")  # of the next text
    expected = [{"name": "calm", "strength": 2}]
    page.page.get_by_role("button", name="Attention", exact=True).click()
    page.page.get_by_role("region", name="All heads").wait_for()
    page.page.get_by_role("button", name="Lens", exact=True).click()
    with page.page.expect_response("**/glass/lens"):
        page.page.get_by_role("checkbox", name="the prompt's tokens too").check()
    with page.page.expect_response("**/glass/inside"):
        page.page.get_by_role("button", name="Step inside", exact=True).click()
    for steered in (asked["attention-maps"], asked["lens"], asked["inside"]):
        assert steered
        assert all(steer == expected for steer in (*steered, *asked["attention"]))
    for steered in asked.values():
        steered.clear()
    with page.page.expect_download() as download:
        page.page.get_by_role("button", name="Save").click()
    assert asked["attention-maps"]
    assert all(steer == expected for steered in asked.values() for steer in steered)
    saved = tmp_path / "saved.html"
    download.value.save_as(saved)
    other = open_page()
    other.show_file(saved, "view=attention")
    other.page.get_by_role("region", name="All heads").wait_for()  # which the page holds


def test_a_server_without_vectors_has_no_sliders(open_page: OpenPage, address: str) -> None:
    page = open_page()
    with page.page.expect_response("**/glass/steering"):
        page.show(address)
    expect(page.page.get_by_text("Enter runs it")).to_be_visible()
    expect(page.page.get_by_text("Steering:")).to_have_count(0)
