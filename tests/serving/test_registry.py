"""Models by name, loaded when first asked for, unloaded when idle."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.ground.errors import CheckpointError, ModelNotFound, QueueFull, Unavailable
from glassformer.serving.limits import Limits
from glassformer.serving.registry import ModelSource, Registry


class Loads:
    """Sources that count how often they are loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, list[str]()

    def source(self, name: str, *aliases: str) -> ModelSource:
        def load() -> Any:
            self.names.append(name)
            return glassformer.load(self.folder)

        return ModelSource(name, load, aliases)


@pytest.fixture
def loads(tiny_encoder: Path) -> Loads:
    return Loads(tiny_encoder)


def test_a_model_is_loaded_once_by_whoever_asks_first(loads: Loads) -> None:
    registry = Registry([loads.source("a", "alias"), loads.source("b")])
    assert registry.served() == {}
    threads = [threading.Thread(target=lambda: registry.release(registry.acquire("alias"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with registry.use(None) as served:
        assert served.name == "a"
        assert served.users == 1
        assert registry.acquire_loaded("b") is None
    assert loads.names == ["a"]
    registry.close()


def test_unknown_names_are_no_paths(loads: Loads, tmp_path: Path) -> None:
    registry = Registry([loads.source("tiny")])
    for name in (str(loads.folder), "smollm2", "Qwen/Qwen3-0.6B", "../tiny", ""):
        with pytest.raises(ModelNotFound, match="There are: tiny."):
            registry.acquire(name)
    with pytest.raises(ModelNotFound, match="'tiny'"):
        registry.acquire("tinny")
    assert loads.names == []


def test_idle_models_are_unloaded_and_loaded_again(loads: Loads) -> None:
    registry = Registry([loads.source("a"), loads.source("b")])
    with registry.use("a"):
        registry.release(registry.acquire("b"))
        assert registry.unload_idle(seconds=0) == ["b"]
        assert registry.unload_idle(seconds=0) == []
    assert registry.unload_idle() == []
    assert registry.unload_idle(seconds=0) == ["a"]
    registry.release(registry.acquire("a"))
    assert loads.names == ["a", "b", "a"]
    registry.close()


def test_the_model_that_was_idle_longest_makes_room(loads: Loads) -> None:
    registry = Registry([loads.source(name) for name in "abc"], Limits(loaded_models=2))
    for name in "aba":
        registry.release(registry.acquire(name))
    with registry.use("c"):
        assert set(registry.served()) == {"a", "c"}
        with registry.use("a"), pytest.raises(QueueFull, match="2 models"):
            registry.acquire("b")
    registry.close()


def test_a_closed_registry_takes_no_requests(loads: Loads) -> None:
    registry = Registry([loads.source("a")])
    registry.release(registry.acquire("a"))
    registry.close()
    assert registry.closed
    with pytest.raises(Unavailable, match="the server is stopping"):
        registry.acquire("a")


def test_why_a_model_cannot_be_loaded_is_in_the_log_each_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry([ModelSource("gone", lambda: glassformer.load(tmp_path / "nowhere"))])
    for count in (1, 2):
        with pytest.raises(CheckpointError, match="^gone "):
            registry.acquire("gone")
        assert caplog.text.count("gone cannot be loaded: ") == count
    assert str(tmp_path / "nowhere") in caplog.text


def test_a_model_is_known_by_the_name_that_clients_use(loads: Loads) -> None:
    registry = Registry([loads.source("a", "alias")])
    with registry.use("alias") as served:
        assert served.model.name == "a"
    registry.close()
