"""Which executor runs a model: the GPU engine if it can, else the CPU engine, else PyTorch; or the one asked for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint
from glassformer.blueprints.drafts import no_head
from glassformer.engine.bridge.files import BridgedFiles, check_bridged_options
from glassformer.engine.protocol import ACTIVATIONS, CACHES, GPU_CACHES, Executor
from glassformer.ground.candidates import EntropyStats, entropy_stats
from glassformer.ground.errors import (
    CheckpointError,
    ExecutorError,
    InputError,
    MissingExtra,
    SettingError,
    did_you_mean,
    install,
    needed_for,
    reason_of,
    spell,
)
from glassformer.ground.ownership import Shared
from glassformer.model_files import DTYPES, ModelFiles, errors_name, open_model
from glassformer.runtime.weights import InMemory

if TYPE_CHECKING:
    from glassformer.engine.bridge.executor import BridgeExecutor
    from glassformer.engine.cpu.executor import CpuExecutor
    from glassformer.engine.cpu.weights import PackedMatrix
    from glassformer.engine.gpu.executor import GpuExecutor
    from glassformer.engine.tensor_parallel.executor import TensorParallelExecutor
    from glassformer.engine.tensor_parallel.process_group import ProcessGroup

EXECUTORS = ("auto", "plain", "cpu", "gpu")
Native = TypeVar("Native")
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class ExecutorOptions:
    """The arguments of `load` that are about executors."""

    executor: str = "auto"
    dtype: str | None = None  # that PyTorch computes in
    cache: str | None = None  # the format of an engine's KV cache
    activations: str | None = None  # what the CPU engine rounds the inputs of quantized matrices to
    batch_invariant: bool = True  # whether a text must not depend on what runs beside it
    tensor_parallel: int = 1  # among how many processes the model is split

    def __post_init__(self) -> None:
        for what, value, known in (
            ("executor", self.executor, EXECUTORS),
            ("dtype", self.dtype, DTYPES),
            ("cache", self.cache, CACHES),
            ("kind of activations", self.activations, ACTIVATIONS),
        ):
            if value is not None and value not in known:
                error = ExecutorError if what == "executor" else InputError
                raise error(f"there is no {what} {value!r}.{did_you_mean(value, known)} Known: {', '.join(known)}.")
        if self.executor in ("cpu", "gpu") and self.dtype is not None:
            engine = f"the {self.executor.upper()} engine"
            raise InputError(f"dtype is what PyTorch computes in; {engine} takes weights as they are. Leave one out.")
        if (self.executor == "plain" or self.dtype is not None) and self.cache is not None:
            raise InputError(
                "cache is for the CPU and GPU engines: PyTorch keeps keys and values in its own dtype. Leave one out."
            )
        if self.executor == "gpu" and self.cache is not None and self.cache not in GPU_CACHES:
            caches = ", ".join(GPU_CACHES)
            raise InputError(f"the GPU engine has no cache {self.cache!r}. Take one of {caches}, or the CPU engine.")
        if not self.native and self.activations is not None:
            other = "the GPU engine" if self.executor == "gpu" else "PyTorch"
            raise InputError(f"activations are for the CPU engine: {other} computes in floats. Leave one out.")
        if self.tensor_parallel < 1:
            raise InputError(
                f"{spell('tensor_parallel')} is {self.tensor_parallel}; it is a number of processes, from 1 on."
            )
        if self.split and (self.executor == "cpu" or (self.cache is not None and self.executor != "gpu")):
            option = spell("executor", "cpu") if self.executor == "cpu" else spell("cache")
            raise InputError(
                f"{spell('tensor_parallel')} splits what PyTorch or the GPU engine runs, and {option} is not for PyTorch. "
                f"Use {spell('executor', 'plain')} or {spell('executor', 'gpu')}, or leave one out."
            )

    @property
    def split(self) -> bool:
        """Whether the model is split among processes: by PyTorch, or by the GPU engine if that is asked for."""
        return self.tensor_parallel > 1

    @property
    def native(self) -> bool:
        """Whether the CPU engine may run it; a dtype means PyTorch."""
        return self.executor in ("auto", "cpu") and self.dtype is None and not self.split

    @property
    def gpu(self) -> bool:
        """Whether the GPU engine may run it; options that only another executor has mean that one."""
        only_cpu = self.activations is not None or (self.cache is not None and self.cache not in GPU_CACHES)
        whole = self.executor == "gpu" or (self.executor == "auto" and self.dtype is None and not only_cpu)
        return whole and not self.split


class Executors(Shared):
    """The executors of one model: each created when first needed, and shared by all `Model`s over it."""

    def __init__(self, opened: ModelFiles | InMemory, options: ExecutorOptions) -> None:
        self.opened = opened
        self.options = options
        if isinstance(opened, BridgedFiles):
            check_bridged_options(
                opened, executor=options.executor in ("cpu", "gpu"), tensor_parallel=options.split, cache=options.cache,
                activations=options.activations,
            )  # fmt: skip
        elif isinstance(opened, ModelFiles) and opened.head not in ("causal", "seq2seq"):
            if options.executor == "gpu":
                raise ExecutorError(
                    f"the GPU engine runs models that write text, and {opened.name} only reads. "
                    f"Use {spell('executor', 'cpu')} or {spell('executor', 'plain')}."
                )
            if options.split:
                raise ExecutorError(
                    f"{spell('tensor_parallel')} is for models that write text, and {opened.name} only reads. Leave it out."
                )

    @cached_property
    def blueprint(self) -> Blueprint:
        return self.opened.blueprint()

    @cached_property
    def executor(self) -> Executor:
        """What runs a model that generates text."""
        if self.bridge is not None:
            return self.bridge
        if self.options.split:
            return self._split_executor()
        engine = self.gpu_executor or self.cpu_executor
        if engine is not None:
            return engine
        module = self.module
        from glassformer.engine.plain.executor import PlainExecutor

        return PlainExecutor(module)

    @cached_property
    def draft_head(self) -> Executor:
        """What runs the model's own head for further tokens."""
        if isinstance(self.opened, InMemory):
            from glassformer.compat.generation_executor import executor_for
            from glassformer.compat.pretrained import draft_model

            return executor_for(draft_model(self.opened.module))
        if (head := self.opened.draft_head) is None:
            raise SettingError(no_head(self.opened.name, self.opened.config))
        head.check_whole()
        self._head_executors = Executors(head, replace(self.options, tensor_parallel=1))
        return self._head_executors.executor

    @cached_property
    def bridge(self) -> BridgeExecutor | None:
        """The executor of a model that transformers computes, and what unembeds the states of one that only reads."""
        if not isinstance(self.opened, BridgedFiles):
            return None
        from glassformer.engine.bridge.executor import BridgeExecutor

        return BridgeExecutor(self.opened.model)

    @cached_property
    def gpu_executor(self) -> GpuExecutor | None:
        """The executor of a model that the GPU engine runs; None where another does."""
        if not self.options.gpu or not isinstance(self.opened, ModelFiles) or isinstance(self.opened, BridgedFiles):
            return None
        asked = self.options.executor == "gpu"
        reason = self.gpu_reason
        if reason is not None:
            if asked:
                raise ExecutorError(reason)
            return None
        self.opened.check_sizes()
        try:
            return self._gpu_executor(self.opened)
        except (ExecutorError, CheckpointError) as error:
            if asked:
                raise
            note(f"{self.opened.name} does not run on the GPU: {error}")
            return None

    @cached_property
    def gpu_reason(self) -> str | None:
        """Why the GPU engine cannot run this model, or its part of one that is split, here; None if it can."""
        from glassformer.engine.gpu.device import blueprint_reason, memory_reason, unusable_reason

        reason = blueprint_reason(self.blueprint) if isinstance(self.opened, ModelFiles) else None
        reason = reason or unusable_reason()
        if reason is not None or not isinstance(self.opened, ModelFiles):
            return reason
        from glassformer.engine.gpu.weights import device_bytes

        return memory_reason(device_bytes(self.opened.tensors.values()) // self.options.tensor_parallel)

    @cached_property
    def cpu_executor(self) -> CpuExecutor | None:
        """The executor of a model that the CPU engine runs; None where another does."""
        return None if self.gpu_executor is not None else self._native(self._cpu_executor)

    @property
    def entropy_stats(self) -> Callable[[npt.NDArray[np.float32]], EntropyStats]:
        """The fastest `entropy_stats` there is for the executor's scores."""
        return entropy_stats if self.cpu_executor is None else self.cpu_executor.entropy_stats

    @cached_property
    def reader(self) -> Any:
        """The CPU engine over the model's base, which turns texts to states; None where PyTorch runs it."""
        if isinstance(self.opened, InMemory) or "module" in vars(self) or self.opened.config.encoder_layers:
            return None  # in PyTorch already; or an encoder-decoder, whose states come from PyTorch
        if self.options.executor == "gpu":
            raise ExecutorError(
                "the GPU engine writes text, and gives no hidden states of whole texts. Use "
                f"{spell('executor', 'cpu')} or {spell('executor', 'plain')}."
            )
        return self._native(self._cpu_reader)

    @cached_property
    def module(self) -> Any:
        """The PyTorch model, an object of the compatible API."""
        if isinstance(self.opened, InMemory):
            return self.opened.module
        if isinstance(self.opened, BridgedFiles):
            return self.opened.model.module
        if self.options.split:
            raise ExecutorError(
                f"{self.opened.name} is split among {self.options.tensor_parallel} processes, none of which has the whole "
                f"module. Load it without {spell('tensor_parallel')}."
            )
        return self._load_module()

    @cached_property
    def packed_module(self) -> Any:
        """The PyTorch model for passes and gradients of activations: what is packed stays so, where the CPU engine can."""
        executor = self.cpu_executor if self.opened.head in ("causal", "seq2seq") and not self.options.split else None
        if executor is None or not (matrices := executor.packed_matrices()):
            return self.module
        return self._load_module(matrices)

    def _load_module(self, packed: Mapping[str, PackedMatrix] | None = None) -> Any:
        assert isinstance(self.opened, ModelFiles)
        with needed_for(f"what is asked of {self.opened.name}"):
            from glassformer.compat.auto import model_class_for_head
            from glassformer.compat.pretrained import load, parse_dtype

        elements = sum(tensor.elements for tensor in self.opened.tensors.values() if tensor.packed)
        if elements and packed is None and self.options.native:
            note(f"{self.opened.name}: in PyTorch its packed weights are float32 numbers, {4 * elements / 1e6:,.1f} MB.")
        cls = model_class_for_head(self.opened.config.model_type, self.opened.head)
        return load(cls, self.opened, parse_dtype(self.options.dtype), packed=packed).requires_grad_(False)

    def _split_executor(self) -> Executor:
        assert isinstance(self.opened, ModelFiles)
        engine: Literal["plain", "gpu"] = "gpu" if self.options.executor == "gpu" else "plain"
        if engine == "gpu" and (reason := self.gpu_reason) is not None:
            raise ExecutorError(reason)
        if self.opened.adapter_ranks:
            raise ExecutorError(
                f"{spell('tensor_parallel')} splits models whose adapters are merged. "
                f"Leave {spell('adapter_mode', 'beside')} out."
            )
        part = SplitModel(
            str(self.opened.path), self.opened.replacement_kind, self.options.dtype, engine, self.options.cache,
            self.opened.adapters,
        )  # fmt: skip
        return split_over_ranks(self.opened, part, self.options.tensor_parallel)

    def _gpu_executor(self, opened: ModelFiles) -> GpuExecutor:
        from glassformer.engine.gpu.executor import GpuExecutor

        if opened.adapter_ranks:
            raise ExecutorError(
                f"the GPU engine runs adapters that are merged. Leave {spell('adapter_mode', 'beside')} out."
            )
        return GpuExecutor(
            opened.config, self.blueprint, opened.tensors, cache=self.options.cache,
            batch_invariant=self.options.batch_invariant,
        )  # fmt: skip

    def _cpu_executor(self, opened: ModelFiles) -> CpuExecutor:
        from glassformer.engine.cpu.executor import CpuExecutor
        from glassformer.engine.cpu.thread_count import fastest_engine

        return CpuExecutor(
            opened.config, self.blueprint, opened.tensors, cache=self.options.cache, activations=self.options.activations,
            engine=fastest_engine(),
        )  # fmt: skip

    def _cpu_reader(self, opened: ModelFiles) -> Any:
        from glassformer.engine.cpu.executor import CpuReader
        from glassformer.engine.cpu.thread_count import fastest_engine

        return CpuReader(
            opened.config, opened.blueprint("base"), opened.tensors, activations=self.options.activations,
            engine=fastest_engine(),
        )  # fmt: skip

    def _native(self, make: Callable[[ModelFiles], Native]) -> Native | None:
        """What `make` builds with the CPU engine; None and a note where it cannot, unless it was asked for by name."""
        if not self.options.native or not isinstance(self.opened, ModelFiles) or isinstance(self.opened, BridgedFiles):
            return None
        self.opened.check_sizes()
        if self.options.executor == "auto" and not _is_library_ready():
            note(f"{self.opened.name} runs on PyTorch: the CPU engine is still being built, for the next start.")
            return None
        try:
            with errors_name(self.opened.path):
                return make(self.opened)
        except (ExecutorError, CheckpointError) as error:
            if self.options.executor == "cpu":
                raise
            if not _has_torch():
                raise MissingExtra(
                    f"{self.opened.name} does not run on the CPU engine ({reason_of(error)}), and another needs PyTorch: "
                    f"{install('torch')}."
                ) from error
            _ = self.module  # what PyTorch cannot open either is said once, by it
            note(f"{self.opened.name} runs on PyTorch: {error}")
            return None


def _is_library_ready() -> bool:
    """Whether the CPU engine need not be waited for longer: it is built, or cannot be, or there is no PyTorch to answer."""
    from glassformer.engine.cpu import build

    return build.await_library(build.PATIENCE if _has_torch() else math.inf)


def _has_torch() -> bool:
    return find_spec("torch") is not None


@dataclass(frozen=True)
class SplitModel:
    """A model by path that is split among ranks, and how each of them loads its part. Needs no torch to be made."""

    path: str
    weights: str | None = None  # the kind that they are quantized in
    dtype: str | None = None  # that PyTorch computes in
    executor: Literal["plain", "gpu"] = "plain"
    cache: str | None = None  # the format of the GPU engine's KV cache
    adapters: tuple[tuple[str, float], ...] = ()  # that are merged into the weights, by name, with a weight each

    def load(self, group: ProcessGroup) -> Executor:
        """This rank's part of the model: of each file only that part is read."""
        opened = self._open()
        return self._load_plain(opened, group) if self.executor == "plain" else self._load_gpu(opened, group)

    def _load_plain(self, opened: ModelFiles, group: ProcessGroup) -> Executor:
        from glassformer.compat.auto import model_class_for_head
        from glassformer.compat.pretrained import load, parse_dtype
        from glassformer.engine.plain.executor import PlainExecutor
        from glassformer.engine.tensor_parallel.split import split_model
        from glassformer.engine.tensor_parallel.split_module import SplitTap, connect

        split = split_model(opened.blueprint(), group.ranks)
        cls = model_class_for_head(opened.config.model_type, opened.head)
        model = load(cls, opened, parse_dtype(self.dtype), parts=split.weight_parts(group.rank)).requires_grad_(False)
        model = model.to(group.device)
        connect(model, split, group)
        return PlainExecutor(model, lambda observers: SplitTap(observers, split, group))

    def _load_gpu(self, opened: ModelFiles, group: ProcessGroup) -> Executor:
        from glassformer.engine.gpu.split_executor import SplitGpuExecutor

        opened.check_sizes()
        return SplitGpuExecutor(opened.config, opened.blueprint(), opened.tensors, group, cache=self.cache)

    def _open(self) -> ModelFiles:
        opened = open_model(self.path, adapter=dict(self.adapters) or None)
        if self.weights is None:
            return opened
        from glassformer.quantize import requantized

        return requantized(opened, self.weights)


def split_over_ranks(opened: ModelFiles, part: SplitModel, ranks: int) -> TensorParallelExecutor:
    """An executor over a model that is split among this process and new ones: on GPUs, if there is one for each rank."""
    from glassformer.engine.tensor_parallel.split import split_model

    split_model(opened.blueprint(), ranks)  # refuses what cannot be split, before any process is started
    with needed_for(spell("tensor_parallel")):
        import torch

    from glassformer.engine.tensor_parallel.executor import TensorParallelExecutor
    from glassformer.engine.tensor_parallel.ranks import RankProcesses

    gpus = torch.cuda.device_count()
    if part.executor == "gpu" and gpus < ranks:
        raise ExecutorError(
            f"{spell('tensor_parallel', ranks)} with {spell('executor', 'gpu')} needs {ranks} GPUs, and there are {gpus}. "
            f"Use {spell('executor', 'plain')}."
        )
    return TensorParallelExecutor(RankProcesses(ranks, "cuda" if gpus >= ranks else "cpu"), part)
