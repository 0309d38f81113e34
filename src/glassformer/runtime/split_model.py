"""A checkpoint whose model is split among ranks: what each of them needs to load its part. Needs no torch to be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from glassformer.engine.protocol import Executor
from glassformer.ground.errors import ExecutorError, needed_for, spell
from glassformer.model_files import ModelFiles, open_model

if TYPE_CHECKING:
    from glassformer.engine.tensor_parallel.executor import TensorParallelExecutor
    from glassformer.engine.tensor_parallel.process_group import ProcessGroup


@dataclass(frozen=True)
class SplitModel:
    """A model by path, and how it is loaded: the same for every rank, and sent to each."""

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
