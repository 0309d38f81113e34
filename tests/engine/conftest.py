"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from glassformer.checkpoint import content_digest
from glassformer.engine.cpu import weights
from glassformer.quantize import weight_cache
from tests.engine.cpu.packed import KEPT, RARE, packed_model
from tests.engine.executors import Subject, write_checkpoint
from tests.parity import reference


@pytest.fixture(scope="session")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", autouse=True)
def _packed_elsewhere(elsewhere: Path) -> Iterator[None]:
    """What is packed of tiny models is not worth a place in anybody's cache."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (weights, weight_cache, content_digest):
            patch.setattr(module, "home", lambda: elsewhere)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Subject]:
    """Tiny models that many tests look at and none changes: by family, with a seed for another config, or by kind."""

    @cache
    def made(what: str, seed: int | None = None) -> Subject:
        folder = tmp_path_factory.mktemp(what)
        if what in (*KEPT, *RARE):
            return packed_model(folder / "model.gguf", what)
        return write_checkpoint(folder, what, **({} if seed is None else reference.random_changes(what, seed)))

    return made
