"""What the doctor says of the CPU engine and its library, on machines that have it and on those that do not."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import glassformer.engine.cpu
from glassformer.cli import common
from glassformer.cli.doctor import examine
from glassformer.engine.cpu import build
from glassformer.errors import ExecutorError
from tests.engine.cpu.workshop import Compiler, write_sources


class Engine(ModuleType):
    """The native library's face, which asks for the library and says what it should say of itself."""

    def __init__(self, sources: Path, levels: list[str]) -> None:
        super().__init__("glassformer.engine.cpu.library")
        self.sources, self.levels = sources, levels

    def describe(self) -> dict[str, Any]:
        build.library(sources=self.sources)
        return {"level": self.levels[0], "levels": self.levels, "threads": 3}


@pytest.fixture
def engine(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A machine with a compiler, and nothing built yet."""
    sources = write_sources(tmp_path / "native")
    found, where = build.held, build.prebuilt
    monkeypatch.setattr(build, "held", lambda given=sources, extra=(): found(given, extra))
    monkeypatch.setattr(build, "prebuilt", lambda given=sources: where(given))
    monkeypatch.setattr(common, "listen", lambda: None)
    monkeypatch.setenv("CXX", str(Compiler(tmp_path / "fake")))
    for name in ("GLASS_REBUILD", "GLASS_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    engine = Engine(sources, ["dotprod", "neon", "portable"])
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.setattr(glassformer.engine.cpu, "library", engine, raising=False)
    return engine


def line(found: dict[str, Any], name: str) -> str:
    (one,) = (line for line in found["executors"] if line.startswith(f"{name}:"))
    return str(one)


def test_built_then_cached(engine: Engine) -> None:
    first, second = line(examine(), "cpu"), line(examine(), "cpu")
    path = build.held(engine.sources)
    assert first == f"cpu: runs on 3 threads, level dotprod (also neon, portable); its library is built just now: {path}"
    assert second == first.replace("built just now", "cached")


def test_prebuilt(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_loads", lambda path: True)
    build.prebuilt(engine.sources).touch()
    engine.levels = ["portable"]
    expected = f"level portable; its library is prebuilt: {build.prebuilt(engine.sources)}"
    assert line(examine(), "cpu") == f"cpu: runs on 3 threads, {expected}"


def test_named(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASS_LIBRARY", "mine.so")
    assert line(examine(), "cpu").endswith("its library is named by GLASS_LIBRARY: mine.so")


def test_without_a_compiler(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = examine()
    assert line(found, "cpu") == "cpu: cannot run: no C++ compiler was found, and the CPU engine is built with one"
    assert "CXX is set to 'no-such-compiler': set it to one that is here, or unset it." in found["advice"]


def test_an_engine_that_cannot_run(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> dict[str, Any]:
        raise ExecutorError("this CPU has no such level")

    monkeypatch.setattr(engine, "describe", fails)
    found = examine()
    assert line(found, "cpu") == "cpu: cannot run: this CPU has no such level"
    assert "this CPU has no such level" in found["advice"]


def test_without_torch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = examine()
    assert line(found, "plain") == "plain: cannot run"
    assert line(found, "cpu").startswith("cpu: runs on 3 threads")
    assert any("pip install torch" in one for one in found["advice"])
