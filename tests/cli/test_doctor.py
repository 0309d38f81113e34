"""What the doctor says of the CPU engine and its library, on machines that have it and on those that do not; and whether
it agrees with PyTorch."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import glassformer.engine.cpu
from glassformer.cli import common
from glassformer.cli.app import app
from glassformer.cli.doctor import examine
from glassformer.engine.cpu import build, cores, thread_bench, thread_count
from glassformer.engine.cpu.cores import Core, Processors
from glassformer.engine.cpu.library import levels, library
from glassformer.engine.cpu.thread_bench import DecodeSpeeds
from glassformer.ground.errors import ExecutorError, InputError, MissingExtra
from glassformer.see import verification as verify
from glassformer.see.thread_bench import Machine
from tests.engine.cpu.fake_compiler import Compiler, write_sources


class FakeEngine(ModuleType):
    """The native library's face, which asks for the library and says what it should say of itself."""

    def __init__(self, sources: Path, levels: list[str]) -> None:
        super().__init__("glassformer.engine.cpu.library")
        self.sources, self.levels = sources, levels

    def describe(self) -> dict[str, Any]:
        build.library(sources=self.sources)
        return {"level": self.levels[0], "levels": self.levels}


@pytest.fixture
def engine(tmp_path: Path, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """A machine with a compiler, and nothing built yet."""
    sources = write_sources(tmp_path / "native")
    found, where = build.find_library, build.prebuilt
    monkeypatch.setattr(build, "find_library", lambda given=sources, *options, **named: found(given, *options, **named))
    monkeypatch.setattr(build, "prebuilt", lambda given=sources: where(given))
    monkeypatch.setattr(common, "log_to_stderr", lambda: None)
    monkeypatch.setenv("CXX", str(Compiler(tmp_path / "fake")))
    monkeypatch.setenv("GLASS_THREADS", "3")
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
    engine_line = "cpu: runs on 3 threads (GLASS_THREADS is set), level dotprod (also neon, portable); its library is"
    assert first == f"{engine_line} built just now: {path}"
    assert second == first.replace("built just now", "cached")


def test_library_is_prebuilt(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_loads", lambda path: True)
    build.prebuilt(engine.sources).touch()
    engine.levels = ["portable"]
    expected = f"level portable; its library is prebuilt: {build.prebuilt(engine.sources)}"
    assert line(examine(), "cpu") == f"cpu: runs on 3 threads (GLASS_THREADS is set), {expected}"


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
    needed = "torch cannot be imported (import of torch halted; None in sys.modules): pip install 'glassformer[torch]'"
    assert line(found, "plain") == f"plain: cannot run: {needed}"
    assert line(found, "cpu").startswith("cpu: runs on 3 threads")
    assert found["advice"] == ["nothing to fix"]  # the light installation
    assert found["extras"]["torch"] == "not installed: pip install 'glassformer[torch]'"
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("GLASS_HOME", "nowhere")
    assert examine()["advice"][0] == needed


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
        assert [one.bound for one in found if one.cache == "f32"] == [*[1e-2] * len(levels()), 2e-1, 5e-1]
        assert [one.activations for one in found if one.activations != "q14"] == ["mixed", "q8"]
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
        assert isinstance(done.exception, MissingExtra)
        assert str(done.exception) == "--verify needs PyTorch: pip install 'glassformer[torch]'."

    def test_an_encoder_is_refused(self, minilm: Path) -> None:
        done = checked("--verify", "-m", str(minilm))
        assert isinstance(done.exception, InputError)
        assert "it reads text and writes none" in str(done.exception)

    def test_model_without_verify_is_refused(self) -> None:
        done = checked("-m", "smollm2")
        assert done.exit_code == 2
        assert "a model is for --verify and --bench only" in done.output

    def test_threads_are_for_verify_only(self) -> None:
        for arguments in (["--threads", "2"], ["--bench", "--threads", "2"]):
            done = checked(*arguments)
            assert done.exit_code == 2
            assert "threads are for --verify only; --bench measures each number" in done.output

    def test_verify_and_bench_exclude_each_other(self) -> None:
        done = checked("--verify", "--bench")
        assert done.exit_code == 2
        assert "one at a time: leave --verify or --bench out" in done.output

    @pytest.mark.sweep
    def test_default_model_agrees(self, smollm2: Path) -> None:
        done = checked("--verify")
        assert done.exit_code == 0, done.output
        assert "smollm2 (Q4_1)" in done.output


class TestBench:
    """The table; what is measured is tested in tests/engine/cpu/test_thread_count.py."""

    SPEEDS = DecodeSpeeds({1: 160.25, 2: 301.0, 4: 620.0, 8: 1001.5, 16: 1010.0, 32: 512.4}, 96_400_000, disturbed=False)

    @pytest.fixture(autouse=True)
    def _machine(self, empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pairs = tuple(Core((number, number + 16)) for number in range(16))
        monkeypatch.setattr(Processors, "cores", pairs)
        xeon = Processors("Xeon 8488C", tuple(range(32)))
        monkeypatch.setattr(cores, "available", lambda: xeon)
        monkeypatch.setenv("GLASS_LIBRARY", library()._name)  # the home is empty
        monkeypatch.setattr(thread_count, "decode_speeds", lambda counts: self.SPEEDS)
        for name in ("GLASS_THREADS", "OMP_NUM_THREADS", "GLASS_LEVEL", "GLASS_PIN_THREADS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("COLUMNS", "100")

    def test_table(self) -> None:
        done = checked("--bench")
        assert done.exit_code == 0, done.output
        assert [line.rstrip() for line in done.stdout.splitlines()] == [
            f"Xeon 8488C · 16 cores, 32 hyper-threads · {levels()[0]} · not pinned",
            "",
            " threads   decode, tokens/s   weights read",
            " ─────────────────────────────────────────────",
            "       1              160.2      15.4 GB/s",
            "       2              301.0      29.0 GB/s",
            "       4              620.0      59.8 GB/s",
            "       8            1,001.5      96.5 GB/s   ◀",
            "      16            1,010.0      97.4 GB/s",
            "      32              512.4      49.4 GB/s",
            "",
            "8 threads, measured: the fewest within 3% of the fastest.",
            "A token reads 96 MB of weights, in SmolLM2's shapes.",
        ]

    def test_small_cores_and_pinned_threads(self) -> None:
        machine = Machine("Phone", 8, 4, 8, None, "dotprod", pinned=True)
        assert machine.line == "Phone · 8 cores, 4 of them fast · dotprod · pinned"

    def test_json_and_what_is_kept(self) -> None:
        report = json.loads(checked("--bench", "--json").stdout)
        assert report["machine"]["logical_processors"] == 32
        assert report["speeds"][3] == {"threads": 8, "decode": 1001.5, "bandwidth": 96_544_600_000.0}
        assert (report["model"], report["chosen"], report["disturbed"]) == (None, 8, False)
        assert json.loads(Path(report["kept"]).read_text("utf-8"))["threads"] == 8

    def test_measured_anew_each_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        checked("--bench")
        monkeypatch.setattr(thread_count, "decode_speeds", lambda counts: DecodeSpeeds({4: 9.0, 8: 5.0}, 1, disturbed=False))
        report = json.loads(checked("--bench", "--json").stdout)
        assert json.loads(Path(report["kept"]).read_text("utf-8"))["threads"] == 4

    def test_requested_number_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLASS_THREADS", "1")
        assert "GLASS_THREADS is set, so that models run on 1 thread nevertheless." in checked("--bench").stdout

    def test_other_programs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(thread_count, "decode_speeds", lambda counts: replace(self.SPEEDS, disturbed=True))
        output = checked("--bench").stdout
        assert "16 threads, one per core, because other programs disturbed the measurement." in output
        assert "Measure again when the machine is idle." in output

    def test_home_that_cannot_be_written(self, empty_home: Path) -> None:
        empty_home.write_text("a file where the folder should be", "utf-8")
        done = checked("--bench", "--json")
        assert done.exit_code == 0, done.output
        report = json.loads(done.stdout)
        assert report["kept"] is None
        assert report["conclusion"].endswith(f"This cannot be kept: nothing can be written to {empty_home}.")

    def test_model(self, tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cores, "available", lambda: Processors("Xeon", (0, 1), quota=2.0))
        monkeypatch.setattr(thread_bench, "model_speeds", partial(thread_bench.model_speeds, seconds=0))
        monkeypatch.setenv("GLASS_THREADS", "1")
        monkeypatch.setenv("COLUMNS", "1000")
        done = checked("--bench", "-m", str(tiny_qwen3))
        assert done.exit_code == 0, done.output
        lines = done.stdout.splitlines()
        assert "quota of 2 processors" in lines[0]
        assert lines[2].split() == ["threads", "decode,", "tokens/s", "prefill,", "tokens/s"]
        assert [line.split()[0] for line in lines[4:6]] == ["1", "2"]
        assert re.search(rf"^{re.escape(str(tiny_qwen3))} \(F32\) decodes fastest with [12] threads?; it runs on 1 "
                         r"\(GLASS_THREADS is set\)\.", " ".join(lines[7:]))  # fmt: skip

    def test_encoder_is_refused(self, minilm: Path) -> None:
        done = checked("--bench", "-m", str(minilm))
        assert isinstance(done.exception, InputError)
        assert "it reads text and writes none" in str(done.exception)
