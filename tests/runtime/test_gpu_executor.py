"""The choice of the GPU engine: on machines that seem to have a GPU, and on those that have none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import glassformer
from glassformer.cli.app import app
from glassformer.cli.doctor import examine, verify_engine
from glassformer.engine.gpu import device, executor
from glassformer.ground.errors import ExecutorError
from glassformer.see.receipt import executor_arguments
from tests.engine.gpu import torch_kernels


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine with a GPU of so much free memory, as far as anybody can tell; it computes on the CPU."""

    def present(free: int) -> None:
        monkeypatch.setattr(device, "unusable_reason", lambda: None)
        monkeypatch.setattr(device, "gpu", lambda: torch.device("cuda", 0))
        monkeypatch.setattr(device, "free_memory", lambda which: free)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        made = partial(executor.GpuExecutor, device=torch.device("cpu"), kernels=torch_kernels)
        monkeypatch.setattr(executor, "GpuExecutor", made)

    return present


def executor_of(model: Path, **options: Any) -> str:
    return glassformer.load(model, **options).executor.describe().name


class TestWithAGpu:
    def test_auto_takes_it(self, tiny_qwen3: Path, card: Callable[[int], None]) -> None:
        card(10**11)
        assert executor_of(tiny_qwen3) == executor_of(tiny_qwen3, executor="gpu") == "gpu"

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"cache": "bf16"}, "gpu"), ({"cache": "q8"}, "cpu"), ({"activations": "q8"}, "cpu"),
            ({"executor": "cpu"}, "cpu"),
            ({"dtype": "float32"}, "plain"), ({"executor": "plain"}, "plain"),
        ],
    )  # fmt: skip
    def test_options_of_another_executor_mean_that_one(
        self, options: dict[str, str], name: str, tiny_qwen3: Path, card: Callable[[int], None]
    ) -> None:
        card(10**11)
        assert executor_of(tiny_qwen3, **options) == name

    def test_it_writes_what_the_cpu_engine_writes(self, tiny_qwen3: Path, card: Callable[[int], None]) -> None:
        card(10**11)
        texts = {glassformer.load(tiny_qwen3, executor=name).chat("Hi", max_new_tokens=5) for name in ("gpu", "cpu")}
        assert len(texts) == 1

    def test_batch_invariance_is_an_option_that_a_saved_run_keeps(
        self, tiny_qwen3: Path, card: Callable[[int], None]
    ) -> None:
        card(10**11)
        assert glassformer.load(tiny_qwen3).executor.describe().options == {}
        about = glassformer.load(tiny_qwen3, batch_invariant=False).executor.describe()
        assert about.option_texts == ["not batch-invariant"]
        arguments = executor_arguments({"executor": {"name": about.name, "options": dict(about.options)}})
        assert arguments == {"executor": "gpu", "batch_invariant": False}

    def test_a_model_that_does_not_fit(self, tiny_qwen3: Path, card: Callable[[int], None]) -> None:
        """Under `auto` another executor runs it; asked for by name, that is an error."""
        card(10**9 + 5)
        assert executor_of(tiny_qwen3) == "cpu"
        message = r"needs 1\.\d GB for this model, and 1.0 GB of the GPU's memory are free. Close other programs"
        with pytest.raises(ExecutorError, match=message):
            executor_of(tiny_qwen3, executor="gpu")

    def test_a_gpu_that_fails_at_loading(
        self,
        tiny_qwen3: Path,
        card: Callable[[int], None],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        card(10**11)

        def fail(*arguments: Any, **options: Any) -> None:
            raise ExecutorError("the GPU lacks memory for the weights.")

        monkeypatch.setattr(executor, "GpuExecutor", fail)
        assert executor_of(tiny_qwen3) == "cpu"
        assert [record.message for record in caplog.records] == [
            f"{tiny_qwen3} does not run on the GPU: the GPU lacks memory for the weights."
        ]
        with pytest.raises(ExecutorError, match="lacks memory"):
            executor_of(tiny_qwen3, executor="gpu")

    def test_a_receipt_s_executor(self, tiny_qwen3: Path, tmp_path: Path, card: Callable[[int], None]) -> None:
        card(10**11)
        path = glassformer.load(tiny_qwen3, cache="f16").watch("Hi", max_new_tokens=3).save(tmp_path / "run.json")
        replayed = CliRunner().invoke(app, ["run", "--replay", str(path)])
        assert replayed.exit_code == 0, replayed.output
        assert "identical" in replayed.stdout

    def test_doctor(self, card: Callable[[int], None]) -> None:
        card(140 * 10**9)
        assert "gpu: runs on NVIDIA H200, 140 GB of memory free" in examine()["executors"]

    def test_doctor_verifies_it(
        self, tiny_qwen3: Path, card: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        card(10**11)
        monkeypatch.setattr("glassformer.cli.doctor.TEXTS", ("how are you?", "1"))
        *_, verdict = verify_engine(glassformer.load(tiny_qwen3, executor="plain", dtype="float32"))
        assert (verdict.level, verdict.cache, verdict.activations, verdict.bound) == ("gpu", "f32", "float", 1e-4)
        assert verdict.agrees


class TestWithoutAGpu:
    @pytest.fixture(autouse=True)
    def _no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(device, "has_driver", lambda: False)

    def test_auto_says_nothing(self, tiny_qwen3: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert executor_of(tiny_qwen3) == "cpu"
        assert not caplog.records

    def test_doctor_says_why(self) -> None:
        (line,) = (line for line in examine()["executors"] if line.startswith("gpu:"))
        assert line.startswith("gpu: cannot run: the GPU engine needs an NVIDIA GPU, and there is no NVIDIA driver here.")
