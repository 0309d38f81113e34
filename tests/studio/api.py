"""What the server's API says, to hold the page against."""

from __future__ import annotations

from typing import Any

import httpx

from tests.patience import patience
from tests.studio.browser import StudioPage, visible


def post(address: str, route: str, **body: Any) -> Any:
    """A route's answer under /glass."""
    response = httpx.post(f"{address}/glass/{route}", json=body, timeout=patience(300))
    assert response.status_code == 200, response.text
    return response.json()


def ask_with_seed(page: StudioPage, address: str, seed: int = 11) -> Any:
    """Ask a question on the page, and wait for the answer; returns the recording that the API gives of it."""
    page.show(address)
    page.set_field("The seed of the next text", seed)
    page.sample()
    recording = post(address, "record", **page.requested(lambda: page.ask("how are you?")))
    page.wait_until_written()
    assert page.answer.all_text_contents() == texts(recording)
    return recording


def texts(recording: Any) -> list[str]:
    """An answer's tokens as the page writes them."""
    return [visible(step["token"]["text"]) for step in recording["steps"]]


def ids(recording: Any) -> list[int]:
    """Of the prompt and the answer."""
    return [token["id"] for token in recording["prompt_tokens"]] + [step["token"]["id"] for step in recording["steps"]]


def other_rank(recording: Any, token: int) -> int:
    """The best candidate of a token that was not chosen."""
    step = recording["steps"][token]
    return int(step["candidates"]["ids"][0] == step["token"]["id"])
