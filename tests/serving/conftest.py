"""A server over tiny models, asked in this process or over a real socket."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

import glassformer
from glassformer.serving.http.app import create_app
from glassformer.serving.http.server import GlassServer
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry
from glassformer.steering.library import Library
from tests.features.dictionaries import random_tensors, write_folder
from tests.parity.reference import write
from tests.patience import patience
from tests.tasks.conftest import Make, make
from tests.training.folders import evaluation_line, sample_line, step_line, training_folder

__all__ = ["make"]
KEY = "a-key-for-the-tests-alone"


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory, minilm: Path) -> Path:
    """A BERT with MiniLM's vocabulary, but tiny inside."""
    folder = tmp_path_factory.mktemp("tiny-encoder")
    write(folder, "bert", "base", vocab_size=30522)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (minilm / name).exists():
            shutil.copy(minilm / name, folder)
    return folder


@pytest.fixture(scope="session")
def autoencoders(tmp_path_factory: pytest.TempPathFactory, tiny_qwen3: Path) -> Path:
    """A folder with a sparse autoencoder of the model that writes."""
    folder = tmp_path_factory.mktemp("autoencoders")
    width = json.loads((tiny_qwen3 / "config.json").read_text("utf-8"))["hidden_size"]
    write_folder(folder / "resid-0", "jumprelu", random_tensors("jumprelu", width, width))
    return folder


@pytest.fixture(scope="session")
def sources(tiny_qwen3: Path, tiny_encoder: Path, autoencoders: Path) -> tuple[ModelSource, ...]:
    """A model that writes, also by an alias, and one that only reads."""
    library = Library(features=autoencoders)
    names = ("gpt-4o", "text-davinci-003")
    return (
        ModelSource("tiny", lambda: glassformer.load(tiny_qwen3), aliases=names, library=library),
        ModelSource("encoder", lambda: glassformer.load(tiny_encoder)),
    )


@contextmanager
def client_with(library: Library, sources: tuple[ModelSource, ...]) -> Iterator[httpx.Client]:
    """A client of a server whose operator has named the folders of this library."""
    served = [replace(source, library=library) for source in sources]
    with TestClient(create_app(Registry(served, Limits(stop_seconds=1))), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="session")
def pair_source(make: Make) -> ModelSource:
    """A tiny encoder-decoder."""
    folder = make("t5", "Seq2SeqLM", decoder_start_token_id=0, eos_token_id=102)
    return ModelSource("pair", lambda: glassformer.load(folder))


@pytest.fixture(scope="session")
def experts_source(make: Make) -> ModelSource:
    """A tiny mixture of experts."""
    folder = make("qwen3_moe", "CausalLM")
    return ModelSource("experts", lambda: glassformer.load(folder))


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a training has left, with a snapshot."""
    lines = [step_line(1, 5.0), sample_line(1, "the"), step_line(2, 4.5), evaluation_line(2, 4.75)]
    return training_folder(tmp_path_factory.mktemp("training"), lines, ("gpt2",), steps=9)


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    """The model that writes, by itself, under the name that it is served by."""
    return glassformer.load(tiny_qwen3).with_name("tiny")


@contextmanager
def serving(app: FastAPI, **options: Any) -> Iterator[str]:
    """The app on a port of this machine; yields its address."""
    server = GlassServer(app, port=0, **options)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert server.ready.wait(patience(100))
    try:
        yield server.address
    finally:
        server.stop()
        thread.join(patience(100))
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def address(sources: tuple[ModelSource, ...]) -> Iterator[str]:
    """A server without a key."""
    with serving(create_app(Registry(sources, Limits(seconds=60, stop_seconds=1)))) as address:
        yield address


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=patience(30), verify=False) as client:  # no certificates need be read
        yield client


def ask(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an app in this process, as a client on this machine sends it."""

    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client,
        ):
            return await client.request(method, path, **options)

    return asyncio.run(request())
