"""Whether there is a GPU that the engine can run on, and what is said if not."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from triton.runtime.errors import OutOfResources

from glassformer.engine.gpu import device
from glassformer.ground.errors import ExecutorError
from tests.engine.executors import Subject


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A machine with a card, as far as the checks can tell."""

    def present(driver: bool = True, cuda: str | None = "13.0", found: bool = True, capability: tuple[int, int] = (9, 0),
                missing: str = "") -> None:  # fmt: skip
        monkeypatch.setattr(device, "has_driver", lambda: driver)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: found)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
        monkeypatch.setattr(device, "find_spec", lambda name: None if name == missing else object())

    return present


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ({"driver": False}, "needs an NVIDIA GPU, and there is no NVIDIA driver here. Use executor='cpu'."),
        ({"cuda": None}, "needs a PyTorch with CUDA, and this one is built without. Install torch from pytorch.org."),
        ({"found": False}, "needs an NVIDIA GPU, and PyTorch finds none. Check nvidia-smi and CUDA_VISIBLE_DEVICES."),
        ({"capability": (7, 5)}, "needs compute capability 8.0 or newer, and Tesla T4 has 7.5. Use executor='plain'."),
        ({"missing": "torch"}, "needs PyTorch, which is not installed. Install it: pip install 'glassformer[gpu]'."),
        ({"missing": "triton"}, "needs Triton, which is not installed. Install it: pip install 'glassformer[gpu]'."),
    ],
)
def test_what_is_lacking_is_named(lacking: dict[str, Any], message: str, card: Callable[..., None]) -> None:
    card(**lacking)
    assert device.unusable_reason() == f"the GPU engine {message}"
    with pytest.raises(ExecutorError, match="^the GPU engine needs"):
        device.gpu()


@pytest.mark.parametrize("function", ["get_device_capability", "mem_get_info"])
def test_a_card_that_another_program_holds(
    function: str, card: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCUDA kernel errors might be")

    card()
    monkeypatch.setattr(torch.cuda, function, fail)
    reason = device.unusable_reason() or device.memory_reason(0)
    assert reason == (
        "the GPU cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable. Check nvidia-smi, or use "
        "executor='cpu'."
    )


def test_nothing_is_warned_of_a_driver_that_is_too_old(
    card: Callable[..., None], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def unavailable() -> bool:
        warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", stacklevel=2)
        return False

    card()
    monkeypatch.setattr(torch.cuda, "is_available", unavailable)
    assert "PyTorch finds none" in (device.unusable_reason() or "")
    assert not recwarn


def test_free_memory_counts_what_torch_holds_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"mem_get_info": (1000, 5000), "memory_reserved": 300, "memory_allocated": 100}
    for name, number in numbers.items():
        monkeypatch.setattr(torch.cuda, name, lambda which, number=number: number)
    assert device.free_memory(torch.device("cuda", 0)) == 1200


def test_a_card_that_can_run(card: Callable[..., None]) -> None:
    card()
    assert device.unusable_reason() is None
    assert device.gpu() == torch.device("cuda", 1)


def test_an_executor_without_a_card_is_an_error(tiny: Callable[..., Subject], monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.engine.gpu.executor import GpuExecutor

    monkeypatch.setattr(device, "has_driver", lambda: False)
    subject = tiny("llama")
    with pytest.raises(ExecutorError, match="NVIDIA"):
        GpuExecutor(subject.config, subject.blueprint, subject.opened.tensors)


class TestMeanwhile:
    def test_work_is_done_when_the_rest_is(self) -> None:
        done: list[int] = []

        def work() -> None:
            done.append(threading.get_ident())

        with device.meanwhile(work):
            pass
        assert len(done) == 1
        assert done[0] != threading.get_ident()

    def test_its_errors_are_nobody_s(self, recwarn: pytest.WarningsRecorder) -> None:
        with device.meanwhile(device.create_context):  # there is no driver here, or none that is asked for
            pass
        assert not recwarn

    def test_tritons_key_is_remembered(self) -> None:
        from triton.runtime.cache import triton_key

        device.read_triton_key()
        assert triton_key.cache_info().currsize == 1


class TestFailures:
    def test_out_of_memory(self) -> None:
        message = "the GPU lacks memory for the weights. Close other programs"
        with pytest.raises(ExecutorError, match=message), device.device_errors("the weights"):
            raise torch.OutOfMemoryError("CUDA out of memory.")

    @pytest.mark.parametrize("sign", ["CUDA error", "Triton Error [CUDA]"])
    def test_a_card_that_fails_or_is_taken_away(self, sign: str) -> None:
        message = re.escape(f"the GPU failed at this pass: {sign}: unspecified launch failure. Load")
        with pytest.raises(ExecutorError, match=message), device.device_errors("this pass"):
            raise RuntimeError(f"{sign}: unspecified launch failure\nCompile with `TORCH_USE_CUDA_DSA`")

    def test_a_kernel_that_does_not_compile(self) -> None:
        message = "could not compile a kernel for this pass: out of resource: shared memory, Required: 112640"
        with pytest.raises(ExecutorError, match=message), device.device_errors("this pass"):
            raise OutOfResources(112640, 101376, "shared memory")

    def test_other_errors_stay_what_they_are(self) -> None:
        for error in (RuntimeError("shapes do not fit"), ExecutorError("CUDA error in a message of ours"), KeyError("x")):
            with pytest.raises(type(error)) as caught, device.device_errors("this pass"):
                raise error
            assert caught.value is error
