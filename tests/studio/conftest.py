"""The studio's tests ask the same tiny models as the server's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

import glassformer
from glassformer.observe.recording import CANDIDATES
from glassformer.runtime.run import Run
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from glassformer.views.recording import Recording
from tests.serving.conftest import serving, sources, tiny_encoder
from tests.studio.browser import OpenPage, chromium, pages

__all__ = ["sources", "tiny_encoder"]


@pytest.fixture(scope="module")  # no longer: while it lives, its event loop is the thread's, and asyncio.run is refused
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    with pages(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def address(sources: tuple[ModelSource, ...]) -> Iterator[str]:
    """A server with the tiny models."""
    limits = Limits(seconds=60, stop_seconds=1, new_tokens=6)
    with serving(create_app(Registry(sources, limits), limits)) as address:
        yield address


@pytest.fixture(scope="module")
def run(tiny_qwen3: Path) -> Run:
    """A sampled run of a tiny model."""
    model = glassformer.load(tiny_qwen3)
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 7, "max_new_tokens": 6}
    return model.watch("how are you?", look=CANDIDATES, **settings)


@pytest.fixture(scope="module")
def recording(run: Run) -> Recording:
    return run.recording
