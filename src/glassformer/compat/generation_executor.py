"""What runs a live model: an engine where it is just what its class says, that of its device; else PyTorch.

An engine computes what a model's class and config say, with the parameters that the model has. Whatever else a caller has
done to the modules (hooks, adapters, other dtypes) is seen by PyTorch alone, which calls every module, as ever.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from glassformer.blueprints import blueprint
from glassformer.compat.generate_inputs import PaddedRows
from glassformer.compat.live_weights import KINDS, LiveWeights
from glassformer.engine.protocol import Executor
from glassformer.ground.errors import CheckpointError, ExecutorError
from glassformer.torch.outputs import BaseModelOutputWithPooling
from glassformer.torch.shapes import first_tokens

if TYPE_CHECKING:
    from glassformer.engine.cpu.executor import CpuExecutor, CpuReader
    from glassformer.engine.gpu.executor import GpuExecutor

OWN_ATTRIBUTES = {  # that change no number
    "training", "recompute", "offload", "model_tags", "generation_config", "weight_files", "stored_heads", "use_gpu_engine",
    "name_or_path", "changes",
}  # fmt: skip
note = logging.getLogger("glassformer").warning


class TensorWatch(Protocol):
    """Notices when a model's tensors change."""

    def unchanged(self, tensors: dict[str, Tensor]) -> bool: ...


@dataclass
class LiveEngine:
    """An engine over one model, kept between calls with the numbers that it was made of."""

    watch: TensorWatch
    executor: Any  # None: it could not be made


_engines: WeakKeyDictionary[nn.Module, LiveEngine] = WeakKeyDictionary()
_as_built: WeakKeyDictionary[nn.Module, ModuleParts] = WeakKeyDictionary()
atexit.register(_engines.clear)  # native memory is freed while there still is an interpreter


def executor_for(model: Any, modules_on_cpu: bool = False) -> Executor:
    """What runs a model in `generate` now.

    `modules_on_cpu`: somebody looks inside or wants a cache, which must have PyTorch's numbers where PyTorch can be as fast.
    """
    executor: Executor | None = None
    if model.use_gpu_engine and _engine_can_run_on(model.device):
        executor = _live_engine(model, _gpu_engine)
    elif model.use_cpu_engine and model.device.type == "cpu" and not modules_on_cpu:
        executor = _live_engine(model, _cpu_engine)
    if executor is not None:
        return executor
    from glassformer.engine.plain.executor import PlainExecutor

    return PlainExecutor(model)


def reader_for(base: Any) -> CpuReader | None:
    """The CPU engine over an encoder, for its states; None where PyTorch computes them."""
    if not base.use_cpu_engine or base.device.type != "cpu":
        return None
    reader: CpuReader | None = _live_engine(base, _cpu_reader)
    return reader


def release_engine(model: nn.Module) -> None:
    """Give back what is kept for a model's next call."""
    _engines.pop(model, None)


def _live_engine(model: Any, make: Callable[[Any, dict[str, Tensor]], LiveEngine]) -> Any:
    """The engine over a model as it is now: the one that is kept, unless a number has changed since; or None."""
    parts = ModuleParts.of(model)
    if own_computation(model, parts) is not None:
        return None
    tensors = {name: value.detach() for name, value in parts.tensors.items()}
    live = _engines.get(model)
    if live is None or not live.watch.unchanged(tensors):
        live = None
        release_engine(model)  # before there is another
        _engines[model] = live = make(model, tensors)
    return live.executor


def _made(model: Any, watch: TensorWatch, make: Callable[[], Any]) -> LiveEngine:
    try:
        return LiveEngine(watch, make())
    except (ExecutorError, CheckpointError) as error:
        note(f"{type(model).__name__} runs on PyTorch: {error}")
        return LiveEngine(watch, None)


def _gpu_engine(model: Any, tensors: dict[str, Tensor]) -> LiveEngine:
    from glassformer.engine.gpu.kernels.fingerprint import ParameterWatch
    from glassformer.engine.gpu.weights import ParameterTensor

    weights = {name: ParameterTensor(name, value) for name, value in tensors.items()}

    def make() -> GpuExecutor:
        _check_memory(model, weights.values())
        return _make_executor(model.config, blueprint(model.config, model.head_kind), weights)

    return _made(model, ParameterWatch(tensors), make)


def _cpu_engine(model: Any, tensors: dict[str, Tensor]) -> LiveEngine:
    weights = LiveWeights(model, tensors)

    def make() -> CpuExecutor:
        from glassformer.engine.cpu.executor import CpuExecutor
        from glassformer.engine.cpu.thread_count import fastest_engine

        plan = blueprint(model.config, model.head_kind)
        return CpuExecutor(model.config, plan, weights.stored, engine=fastest_engine())

    return _made(model, weights, make)


def _cpu_reader(base: Any, tensors: dict[str, Tensor]) -> LiveEngine:
    weights = LiveWeights(base, tensors)

    def make() -> CpuReader:
        from glassformer.engine.cpu.executor import CpuReader
        from glassformer.engine.cpu.thread_count import fastest_engine

        return CpuReader(base.config, blueprint(base.config, "base"), weights.stored, engine=fastest_engine())

    return _made(base, weights, make)


def _make_executor(config: Any, model_blueprint: Any, weights: Any) -> GpuExecutor:
    from glassformer.engine.gpu.executor import GpuExecutor

    return GpuExecutor(config, model_blueprint, weights)


def _engine_can_run_on(device: torch.device) -> bool:
    if device.type != "cuda" or device.index != torch.cuda.current_device():
        return False
    from glassformer.engine.gpu.device import unusable_reason

    return unusable_reason() is None


def _check_memory(model: Any, weights: Any) -> None:
    """Refuse where the GPU lacks memory for a second copy of the matrices, most of which are joined."""
    from glassformer.engine.gpu.device import memory_reason

    embedding = model.base_model.token_embedding.weight.nbytes
    if (reason := memory_reason(sum(weight.size for weight in weights) - embedding)) is not None:
        raise ExecutorError(reason)


# Whether a model is just what its class says ----------------------------------------------------------------------------


class ModuleParts(NamedTuple):
    """The modules of a model, and their parameters and buffers, by name."""

    modules: dict[str, nn.Module]
    tensors: dict[str, Tensor]

    @classmethod
    def of(cls, model: Any) -> ModuleParts:
        modules = {"its base": model.base_model, "its head": getattr(model, "head_module", model)}  # named or not
        modules |= {name: module for name, module in model.named_modules() if not _in_pooler(name)}
        tensors = {
            f"{name}.{key}" if name else key: value
            for name, module in modules.items()
            if not name.startswith("its ")
            for key, value in (*module._parameters.items(), *module._buffers.items())
            if value is not None
        }
        return cls(modules, tensors)

    @property
    def shapes(self) -> dict[str, tuple[torch.Size, str]]:
        """The shape of each tensor, and the first name of one that has several."""
        first_names: dict[int, str] = {}
        return {name: (value.shape, first_names.setdefault(id(value), name)) for name, value in self.tensors.items()}


def _in_pooler(name: str) -> bool:
    """Whether a module is an encoder's pooler, which PyTorch runs whatever gives the states, and which a head may lack."""
    return name.partition(".")[0] == "pooler"


def own_computation(model: Any, parts: ModuleParts) -> str | None:
    """What makes a model compute something else than its class and config say, or what only PyTorch computes; else None."""
    if model.training:
        return "it is in training mode"
    device = model.device
    if (
        torch.is_autocast_enabled(device.type)
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._is_tracing()
    ):
        return "PyTorch's operations are intercepted"
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        return "every module has a hook"
    for name, module in parts.modules.items():
        if module._forward_hooks or module._forward_pre_hooks:
            return f"{name or 'the model'} has a hook"
    for name, value in parts.tensors.items():
        plain = type(value) in (nn.Parameter, Tensor) and value.layout is torch.strided and value.is_contiguous()
        if not plain or value.dtype not in KINDS or value.device != device:
            return f"{name} is on another device, or of a dtype or class that the engine does not know"
    if model not in _as_built:
        with torch.device("meta"):
            _as_built[model] = ModuleParts.of(type(model)(model.config))
    built = _as_built[model]
    if built.modules.keys() != parts.modules.keys() or built.shapes != parts.shapes:
        return "modules or parameters were added, removed or reshaped"
    changed = (name for name, module in parts.modules.items() if not _same_module(module, built.modules[name]))
    return next((f"{name or 'the model'} was replaced or changed" for name in changed), None)


def _same_module(module: nn.Module, built: nn.Module) -> bool:
    """Whether a module is as its class built it; what the caller has added to it must hide nothing of its class."""
    attributes, as_built = vars(module), vars(built)
    return type(module) is type(built) and all(
        not hasattr(type(module), name) if name not in as_built else value is as_built[name] or value == as_built[name]
        for name, value in attributes.items()
        if name[0] != "_" and name not in OWN_ATTRIBUTES
    )


# An encoder's calls: token ids in, final states out, and nothing else asked for ------------------------------------------


INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def encoder_output(base: Any, args: Sequence[Any], named: Mapping[str, Any]) -> BaseModelOutputWithPooling | None:
    """What the call gives; None where PyTorch answers it."""
    if torch.is_grad_enabled() or len(args) > len(INPUTS):
        return None
    inputs: dict[str, Any] = dict.fromkeys(INPUTS) | dict(zip(INPUTS, args, strict=False)) | dict(named)
    ids, mask, types = (inputs.pop(name) for name in INPUTS)
    if any(value is not None and value is not False for value in inputs.values()) or not _is_plain(base, ids, mask, types):
        return None
    if (reader := reader_for(base)) is None:
        return None
    layout = PaddedRows.of(len(ids), ids.shape[1], mask)
    own_types = None if types is None else [row.tolist() for row in layout.own(types)]
    rows = reader.read([row.tolist() for row in layout.own(ids)], own_types)
    states = torch.zeros(*ids.shape, base.config.hidden_size, dtype=base.dtype)
    for state, row, columns in zip(states, rows, layout.columns, strict=True):
        state[columns] = torch.from_numpy(row).to(base.dtype)
    real = None if mask is None else mask.bool()
    return BaseModelOutputWithPooling(states, None if base.pooler is None else base.pooled(first_tokens(states, real)))


def _is_plain(base: Any, ids: Any, mask: Any, types: Any) -> bool:
    """Whether these are ids of the vocabulary, padded on one side, and types that the model knows."""
    given = [tensor for tensor in (ids, mask, types) if tensor is not None]
    if not all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in given) or ids is None:
        return False
    integers = all(tensor.dtype in (torch.int64, torch.int32) for tensor in (ids, *given[2:]))
    if ids.ndim != 2 or not ids.numel() or not integers or any(tensor.shape != ids.shape for tensor in given):
        return False
    type_count = getattr(base.config, "type_vocab_size", 0) or 1 << 30
    bounds = [(ids, base.vocabulary_size), *([(types, type_count)] if types is not None else [])]
    if ids.shape[1] > base.config.context or any(tensor.min() < 0 or tensor.max() >= end for tensor, end in bounds):
        return False
    if mask is None:
        return True
    real = mask.bool()
    return bool(real.any(1).all() and ((real[:, 1:] != real[:, :-1]).sum(1) <= 1).all())
