"""What the doctor says of the CPU engine and its library, on machines that have it and on those that do not; and whether
it agrees with PyTorch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import glassformer.engine.cpu
from glassformer.cli import common
from glassformer.cli.app import app
from glassformer.cli.doctor import examine
from glassformer.engine.cpu import build
from glassformer.engine.cpu.library import levels
from glassformer.errors import ExecutorError, InputError
from glassformer.observe import verification as verify
from tests.engine.cpu.fake_compiler import Compiler, write_sources


class FakeEngine(ModuleType):
    """The native library's face, which asks for the library and says what it should say of itself."""

    def __init__(self, sources: Path, levels: list[str]) -> None:
        super().__init__("glassformer.engine.cpu.library")
        self.sources, self.levels = sources, levels

    def describe(self) -> dict[str, Any]:
        build.library(sources=self.sources)
        return {"level": self.levels[0], "levels": self.levels, "threads": 3}


@pytest.fixture
def engine(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A machine with a compiler, and nothing built yet."""
    sources = write_sources(tmp_path / "native")
    found, where = build.find_library, build.prebuilt
    monkeypatch.setattr(build, "find_library", lambda given=sources, extra=(): found(given, extra))
    monkeypatch.setattr(build, "prebuilt", lambda given=sources: where(given))
    monkeypatch.setattr(common, "log_to_stderr", lambda: None)
    monkeypatch.setenv("CXX", str(Compiler(tmp_path / "fake")))
    for name in ("GLASS_REBUILD", "GLASS_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    engine = FakeEngine(sources, ["dotprod", "neon", "portable"])
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    monkeypatch.setattr(glassformer.engine.cpu, "library", engine, raising=False)
    return engine


def line(found: dict[str, Any], name: str) -> str:
    (one,) = (line for line in found["executors"] if line.startswith(f"{name}:"))
    return str(one)


def test_library_is_built_then_cached(engine: FakeEngine) -> None:
    first, second = line(examine(), "cpu"), line(examine(), "cpu")
    path = build.find_library(engine.sources)
    assert first == f"cpu: runs on 3 threads, level dotprod (also neon, portable); its library is built just now: {path}"
    assert second == first.replace("built just now", "cached")


def test_library_is_prebuilt(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_loads", lambda path: True)
    build.prebuilt(engine.sources).touch()
    engine.levels = ["portable"]
    expected = f"level portable; its library is prebuilt: {build.prebuilt(engine.sources)}"
    assert line(examine(), "cpu") == f"cpu: runs on 3 threads, {expected}"


def test_library_set_by_environment(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASS_LIBRARY", "mine.so")
    assert line(examine(), "cpu").endswith("its library is set by GLASS_LIBRARY: mine.so")


def test_without_a_compiler(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = examine()
    assert line(found, "cpu") == "cpu: cannot run, see the advice"
    assert found["advice"][-1] == (
        "no C++ compiler was found, and the CPU engine is built with one. "
        "CXX is set to 'no-such-compiler': set it to one that is here, or unset it."
    )


def test_cpu_engine_that_cannot_run(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> dict[str, Any]:
        raise ExecutorError("this CPU has no such level")

    monkeypatch.setattr(engine, "describe", fails)
    found = examine()
    assert line(found, "cpu") == "cpu: cannot run, see the advice"
    assert found["advice"][-1] == "this CPU has no such level"


def test_without_torch(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = examine()
    assert line(found, "plain") == "plain: cannot run"
    assert line(found, "cpu").startswith("cpu: runs on 3 threads")
    assert any("pip install torch" in one for one in found["advice"])


def checked(*words: str) -> Any:
    """`glass doctor`, in this process."""
    return CliRunner().invoke(app, ["doctor", *words])


class TestVerify:
    @pytest.fixture(autouse=True)
    def _few_texts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("glassformer.cli.doctor.TEXTS", ("how are you?", "1"))

    def test_agreement_exits_with_0(self, tiny_qwen3: Path) -> None:
        done = checked("--verify", "-m", str(tiny_qwen3), "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["model"], found["weights"], found["right"]) == (str(tiny_qwen3), "F32", "plain, float32")
        ways = [(one["level"], one["cache"]) for one in found["checks"]]
        assert ways == [*((level, "f32") for level in levels()), *((levels()[0], cache) for cache in ("f16", "bf16", "q8"))]
        for one in found["checks"]:
            assert one["agrees"]
            assert one["worst"]["error"] <= one["bound"]
            assert one["agreement"] > 0.9
            assert len(one["sites"]) == 3 * 12 + 3

    def test_a_difference_exits_with_1(self, tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Held against nothing at all, for the engine has no such fault to show."""
        monkeypatch.setattr(verify, "tolerance", lambda packed, cache, activations: 0.5 if cache == "q8" else 0.0)
        done = checked("--verify", "-m", str(tiny_qwen3))
        assert done.exit_code == 1
        first, *lines = done.stdout.splitlines()
        assert first == f"{tiny_qwen3} (F32): the CPU engine beside PyTorch in float32, at every site"
        assert [line.split()[-1] for line in lines if "f16" in line or "q8" in line] == ["differs", "differs", "agrees"]

    def test_quantized_weights_have_a_looser_bound(self, tiny_qwen3: Path) -> None:
        from glassformer.cli.doctor import verify_engine

        found = verify_engine(common.load_model(str(tiny_qwen3), executor="plain", dtype="float32", weights="q8_0"))
        assert [one.bound for one in found if one.cache == "f32"] == [*[1e-2] * len(levels()), 5e-1]
        assert [one.activations for one in found if one.activations != "q14"] == ["q8"]
        assert all(one.agrees for one in found)
        assert all(one.verdict.worst.error > 1e-5 for one in found)

    def test_encoder_decoder_is_verified(self, tmp_path: Path, tiny_qwen3: Path) -> None:
        import shutil

        from glassformer.cli.doctor import verify_engine
        from tests.parity import reference

        reference.write(tmp_path, "t5", "seq2seq", vocab_size=151936, d_model=16, d_ff=16)
        for file in tiny_qwen3.glob("tokenizer*"):
            shutil.copy(file, tmp_path)
        found = verify_engine(common.load_model(str(tmp_path), executor="plain", dtype="float32"))
        assert all(one.agrees for one in found)
        assert found[0].verdict.sites[0].site == "encoder.embedding"

    def test_without_torch(self, tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        done = checked("--verify", "-m", str(tiny_qwen3))
        assert isinstance(done.exception, ExecutorError)
        assert "compares the CPU engine with PyTorch, and torch cannot be imported" in str(done.exception)
        assert "pip install torch" in str(done.exception)

    def test_an_encoder_is_refused(self, minilm: Path) -> None:
        done = checked("--verify", "-m", str(minilm))
        assert isinstance(done.exception, InputError)
        assert "it reads text and writes none" in str(done.exception)

    def test_model_without_verify_is_refused(self) -> None:
        done = checked("-m", "smollm2")
        assert done.exit_code == 2
        assert "a model is for --verify only" in done.output

    @pytest.mark.sweep
    def test_default_model_agrees(self, smollm2: Path) -> None:
        done = checked("--verify")
        assert done.exit_code == 0, done.output
        assert "smollm2 (Q4_1)" in done.output
