"""A part of a model for the GPU engine on a rank without a GPU. In a file of its own: the other ranks import it."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.engine.gpu.split_executor import SplitGpuExecutor
from glassformer.engine.tensor_parallel.process_group import ProcessGroup
from glassformer.model_files import open_model
from tests.engine.gpu import torch_kernels


@dataclass(frozen=True)
class SplitGpuModel:
    """With kernels written in PyTorch, and keys and values in float32."""

    path: str

    def load(self, group: ProcessGroup) -> SplitGpuExecutor:
        opened = open_model(self.path)
        return SplitGpuExecutor(opened.config, opened.blueprint(), opened.tensors, group, cache="f32", kernels=torch_kernels)
