"""`generate` of a live model: an engine over the model's own parameters, and PyTorch where the caller changed more.

There is no GPU here, so the GPU engine runs on the CPU, with kernels written in PyTorch.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import tests.engine.gpu.triton_interpreter  # noqa: F401
from glassformer.compat import auto, generation_executor
from glassformer.compat.generation_executor import executor_for
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.program import MatrixRef
from glassformer.ground.errors import ExecutorError
from tests.engine.gpu import torch_kernels
from tests.parity import reference
from tests.sweeps import mostly_swept

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.tensor([[5, 9, 14, 3, 77, 21], [21, 77, 3, 14, 9, 5]])
FAMILIES = ("llama", "qwen3", "gemma3_text", "gpt2", "t5", "bart")


def make_executor(config: Any, blueprint: Any, weights: Any) -> GpuExecutor:
    return GpuExecutor(config, blueprint, weights, device=torch.device("cpu"), kernels=torch_kernels)


@pytest.fixture(autouse=True, params=["gpu", "cpu"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """The class of the engine that runs models."""
    if request.param == "gpu":
        monkeypatch.setattr(generation_executor, "_engine_can_run_on", lambda device: True)
        monkeypatch.setattr(generation_executor, "_check_memory", lambda model, weights: None)
        monkeypatch.setattr(generation_executor, "_make_executor", make_executor)
    yield GpuExecutor if request.param == "gpu" else CpuExecutor
    generation_executor._engines.clear()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def write(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            reference.write(made[family], family, "seq2seq" if family in reference.PAIRS else "causal")
        return made[family]

    return write


@pytest.fixture
def load(folder: Callable[[str], Path]) -> Callable[..., Any]:
    def loaded(family: str = "llama", **options: Any) -> Any:
        ending = "Seq2SeqLM" if family in reference.PAIRS else "CausalLM"
        return getattr(auto, f"AutoModelFor{ending}").from_pretrained(folder(family), **options)

    return loaded


def by_pytorch(model: Any, ids: torch.Tensor = IDS, **settings: Any) -> list[list[int]]:
    model.use_gpu_engine = model.use_cpu_engine = False
    result: list[list[int]] = model.generate(ids, max_new_tokens=4, eos_token_id=None, **settings).tolist()
    model.use_gpu_engine = model.use_cpu_engine = True
    return result


@pytest.mark.parametrize("family", mostly_swept(FAMILIES, "gpt2", "gemma3_text", "t5"))
def test_the_engine_writes_what_pytorch_writes(family: str, load: Callable[..., Any], engine: type[Any]) -> None:
    model = load(family)
    assert isinstance(executor_for(model), engine)
    assert model.generate(IDS, max_new_tokens=4, eos_token_id=None).tolist() == by_pytorch(model)
    steps = [step.id for row, step in model.steps(IDS, max_new_tokens=4, eos_token_id=None, look=2) if row == 1]
    assert steps == by_pytorch(model)[1][-4:]


def test_the_engine_is_kept_between_calls(load: Callable[..., Any]) -> None:
    model = load()
    first = executor_for(model)
    model.generate(IDS, max_new_tokens=2)
    assert executor_for(model) is first
    assert not isinstance(first, PlainExecutor)


def test_matrices_that_stand_alone_are_the_parameters_themselves(load: Callable[..., Any], engine: type[Any]) -> None:
    model = load()
    weights = executor_for(model)._weights
    if engine is CpuExecutor:
        matrix = model.get_parameter("model.layers.0.mlp.down_proj.weight")
        reference = MatrixRef(("model.layers.0.mlp.down_proj.weight",), tuple(matrix.shape))
        assert weights.matrix(reference).data == matrix.data_ptr()
        return
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.0.self_attn.o_proj.weight"):
        assert weights.part(name).data.data_ptr() == model.get_parameter(name).data_ptr()


def halve_in_place(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.mul_(0.5)


def negate_behind_the_version_counter(model: Any) -> None:
    model.model.layers[1].mlp.up_proj.weight.data.neg_()


def swap_rows(model: Any) -> None:
    weight = model.model.layers[0].mlp.gate_proj.weight.data
    weight.copy_(weight.flip(0))


def change_one_number(model: Any) -> None:
    model.model.norm.weight.data[3] += 1


def load_state(model: Any) -> None:
    model.load_state_dict({name: value + 0.1 for name, value in model.state_dict().items()})


def take_an_optimizer_step(model: Any) -> None:
    model(IDS, labels=IDS).loss.backward()
    torch.optim.SGD(model.parameters(), lr=10.0).step()


def put_another_tensor_in_place(model: Any) -> None:
    weight = model.model.layers[0].self_attn.v_proj.weight
    weight.data = weight.data * -2


@pytest.mark.parametrize(
    "change",
    [
        halve_in_place,
        negate_behind_the_version_counter,
        swap_rows,
        change_one_number,
        load_state,
        take_an_optimizer_step,
        put_another_tensor_in_place,
    ],
)
def test_changed_weights_are_noticed(change: Callable[[Any], None], load: Callable[..., Any], engine: type[Any]) -> None:
    model = load()
    first = executor_for(model)
    change(model)
    second = executor_for(model)
    assert isinstance(second, engine)
    assert second is not first
    assert model.generate(IDS, max_new_tokens=4, eos_token_id=None).tolist() == by_pytorch(model)


class Adapter(nn.Module):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * 2


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def add_a_hook(model: Any) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: output * 0)


def add_a_hook_before(model: Any) -> None:
    model.model.register_forward_pre_hook(lambda module, args: None)


def replace_a_module(model: Any) -> None:
    model.model.layers[0].self_attn.q_proj = Adapter(model.model.layers[0].self_attn.q_proj)


def replace_an_activation(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.ReLU()


def parametrize_a_weight(model: Any) -> None:
    parametrize.register_parametrization(model.model.layers[0].mlp.up_proj, "weight", Doubled())


def replace_a_method(model: Any) -> None:
    model.model.layers[0].self_attn.forward = lambda x, p: x


def change_an_attribute(model: Any) -> None:
    model.model.layers[0].self_attn.scale = 1.0


def remove_a_layer(model: Any) -> None:
    model.model.layers = model.model.layers[:-1]


def swap_layers(model: Any) -> None:
    model.model.layers = nn.ModuleList(reversed(model.model.layers))


def share_a_weight(model: Any) -> None:
    model.model.layers[0].mlp.up_proj.weight = model.model.layers[0].mlp.gate_proj.weight


def take_another_dtype(model: Any) -> None:
    model.model.layers[0].mlp.double()


@pytest.mark.parametrize(
    "change",
    [
        add_a_hook,
        add_a_hook_before,
        replace_a_module,
        replace_an_activation,
        parametrize_a_weight,
        replace_a_method,
        change_an_attribute,
        remove_a_layer,
        swap_layers,
        share_a_weight,
        take_another_dtype,
        nn.Module.train,
    ],
)
def test_what_the_caller_changed_runs_as_modules(
    change: Callable[[Any], object], load: Callable[..., Any], engine: type[Any]
) -> None:
    model = load()
    assert isinstance(executor_for(model), engine)
    change(model)
    assert isinstance(executor_for(model), PlainExecutor)


def test_hooks_of_all_modules_and_intercepted_operations_run_as_modules(load: Callable[..., Any], engine: type[Any]) -> None:
    model = load()
    handle = nn.modules.module.register_module_forward_hook(lambda module, args, output: None)
    assert isinstance(executor_for(model), PlainExecutor)
    handle.remove()
    with torch.autocast("cpu", torch.bfloat16):
        assert isinstance(executor_for(model), PlainExecutor)
    assert isinstance(executor_for(model), engine)


def test_a_hook_is_called_and_its_removal_brings_the_engine_back(load: Callable[..., Any]) -> None:
    model, calls = load(), []
    handle = model.model.layers[0].register_forward_hook(lambda *args: calls.append(1))
    with_hook = model.generate(IDS, max_new_tokens=3, eos_token_id=None)
    assert len(calls) == 3
    handle.remove()
    assert torch.equal(model.generate(IDS, max_new_tokens=3, eos_token_id=None), with_hook)
    assert len(calls) == 3


def test_attributes_that_compute_nothing_do_not_matter(load: Callable[..., Any], engine: type[Any]) -> None:
    model = load()
    model.remark = "mine"
    model.generation_config.max_new_tokens = 5
    assert isinstance(executor_for(model), engine)


def test_a_model_that_is_dropped_takes_the_engine_with_it(load: Callable[..., Any]) -> None:
    model = load()
    engine = weakref.ref(executor_for(model))
    assert engine() is not None
    del model
    gc.collect()
    assert engine() is None


@pytest.mark.parametrize("release", [lambda model: model.to(torch.float32), lambda model: model.train()])
def test_moving_and_training_give_the_engine_back(release: Callable[[Any], Any], load: Callable[..., Any]) -> None:
    model = load()
    engine = weakref.ref(executor_for(model))
    release(model)
    gc.collect()
    assert engine() is None


def test_a_copy_has_an_engine_of_its_own(load: Callable[..., Any]) -> None:
    model = load()
    first = executor_for(model)
    other = copy.deepcopy(model)
    halve_in_place(other)
    assert executor_for(other) is not first
    assert executor_for(model) is first


def test_an_assistant_runs_in_its_engine_too(load: Callable[..., Any], engine: type[Any]) -> None:
    model, assistant = load(), load()
    expected = by_pytorch(model, IDS[:1])
    generation_executor._engines.clear()
    result = model.generate(IDS[:1], assistant_model=assistant, max_new_tokens=4, eos_token_id=None)
    assert result.tolist() == expected
    assert all(isinstance(generation_executor._engines[one].executor, engine) for one in (model, assistant))


def test_an_engine_that_cannot_be_made_is_said_once(
    load: Callable[..., Any], engine: type[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any, **named: Any) -> None:
        raise ExecutorError("the engine needs 9.0 GB for this model.")

    if engine is GpuExecutor:
        monkeypatch.setattr(generation_executor, "_check_memory", refuse)
    else:
        monkeypatch.setattr("glassformer.engine.cpu.executor.CpuExecutor", refuse)
    model = load()
    for _ in range(2):
        assert isinstance(executor_for(model), PlainExecutor)
    assert caplog.messages == ["LlamaForCausalLM runs on PyTorch: the engine needs 9.0 GB for this model."]


def test_each_engine_can_be_switched_off(load: Callable[..., Any], engine: type[Any]) -> None:
    model = load()
    setattr(model, "use_gpu_engine" if engine is GpuExecutor else "use_cpu_engine", False)
    assert not isinstance(executor_for(model), engine)
    if engine is CpuExecutor:
        assert isinstance(executor_for(model), PlainExecutor)
