"""The studio's tests ask the same tiny models as the server's, in one browser and of one server for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.engine.cpu.build import library
from glassformer.ground.errors import ExecutorError
from glassformer.runtime.model import Model
from glassformer.runtime.run import Run
from glassformer.see.recording import CANDIDATES, Recording
from glassformer.serving.http.app import create_app
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from tests.serving.conftest import autoencoders, make, pair_source, serving, sources, tiny_encoder
from tests.studio.browser import OpenPage, Windows, chromium, running_loop
from tests.tasks.conftest import Make, named_labels

__all__ = ["autoencoders", "make", "named_labels", "pair_source", "sources", "tiny_encoder"]

LIMITS = Limits(seconds=300, stop_seconds=1, new_tokens=6, loaded_models=12)
HEADS = {
    "labels": "SequenceClassification",
    "entities": "TokenClassification",
    "gaps": "MaskedLM",
    "answers": "QuestionAnswering",
}


@pytest.fixture(scope="session", autouse=True)
def native_library() -> None:
    """Built before any page waits for an answer: compiling it takes longer than an answer ever does."""
    with suppress(ExecutorError):  # without a compiler, models run without it
        library()


@pytest.fixture(scope="session")
def windows() -> Iterator[tuple[Windows, asyncio.AbstractEventLoop | None]]:
    """The windows of one browser, and the loop that drives it, which is hidden from tests that use neither."""
    with chromium() as browser:
        loop = asyncio._get_running_loop()
        with running_loop(None):
            yield Windows(browser), loop


@pytest.fixture
def open_page(windows: tuple[Windows, asyncio.AbstractEventLoop | None]) -> Iterator[OpenPage]:
    all_windows, loop = windows
    with running_loop(loop), all_windows.lend() as open_page:
        yield open_page


@pytest.fixture(scope="session")
def address(
    sources: tuple[ModelSource, ...], pair_source: ModelSource, make: Make, named_labels: dict[str, Any]
) -> Iterator[str]:
    """A server with tiny models: one that writes, one that reads, a T5, and a BERT with each head, made when it is asked."""

    def reader(name: str, head: str) -> ModelSource:
        labels = named_labels if name in ("labels", "entities") else {}
        load: Callable[[], Model] = lambda: glassformer.load(make("bert", head, **labels))  # noqa: E731
        return ModelSource(name, load)

    readers = (reader(name, head) for name, head in HEADS.items())
    with serving(create_app(Registry((*sources, pair_source, *readers), LIMITS), LIMITS)) as address:
        yield address


@pytest.fixture(scope="session")
def run(tiny_qwen3: Path) -> Run:
    """A sampled run of a tiny model."""
    model = glassformer.load(tiny_qwen3)
    settings = {"do_sample": True, "temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 7, "max_new_tokens": 6}
    return model.watch("how are you?", look=CANDIDATES, **settings)


@pytest.fixture(scope="session")
def recording(run: Run) -> Recording:
    return run.recording
