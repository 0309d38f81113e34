"""The GPU engine on one rank of several: the same kernels over a part of the heads and neurons, and sums over all ranks.

Each rank has the whole vocabulary, so that all of them choose the same tokens without asking each other. With NCCL a sum is
queued like a kernel, and captured in graphs with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.stored_tensors import BufferedFile, StoredTensor
from glassformer.engine.gpu import kernels
from glassformer.engine.gpu.device_steps import knows
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.gpu.passes import GpuLogits
from glassformer.engine.gpu.persistent.layout import DecoderLayout
from glassformer.engine.gpu.weights import DTYPES
from glassformer.engine.protocol import Capabilities, Choice, DeviceSampler, Feed
from glassformer.engine.tensor_parallel.process_group import ProcessGroup
from glassformer.engine.tensor_parallel.split import rank_blueprint, split_model
from glassformer.engine.tensor_parallel.split_module import take_part
from glassformer.ground.errors import ExecutorError, spell
from glassformer.ops.split import TensorPart


class RankKernels:
    """The engine's kernels, and the sum over all ranks."""

    def __init__(self, kernels: Any, group: ProcessGroup) -> None:
        self._kernels, self._group = kernels, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)

    def sum_over_ranks(self, buffer: Tensor) -> None:
        summed = self._group.sum(buffer)
        if summed is not buffer:
            buffer.copy_(summed)


class SplitGpuExecutor(GpuExecutor):
    """An `Executor` over a rank's part of a model; all ranks must make the same calls."""

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, StoredTensor], group: ProcessGroup, *,
        cache: str | None = None, kernels: Any = kernels,
    ) -> None:  # fmt: skip
        self._group = group
        self._split = split_model(blueprint, group.ranks, whole_vocabulary=True)
        named = resolve_names(tensors, [weight.name for weight in blueprint.weights])
        for name, part in self._split.weight_parts(group.rank).items():
            if name in named:
                named[name] = stored_part(named[name], part)
        part_blueprint = rank_blueprint(blueprint, self._split, group.rank)
        super().__init__(
            config, part_blueprint, named, cache=cache, device=group.device, kernels=RankKernels(kernels, group)
        )

    def _fitting_layout(self) -> tuple[DecoderLayout | None, str]:
        return None, "split among ranks: the order of their sums may depend on how many rows there are"

    def run(self, feeds: Sequence[Feed]) -> list[GpuLogits]:
        for feed in feeds:
            for site in () if feed.watch is None else self._checks.watch(feed.watch).changes:
                if site in self._split.sites:
                    raise ExecutorError(
                        f"the GPU engine cannot change {site} where it is split among ranks. Use "
                        f"{spell('executor', 'plain')}."
                    )
        results = super().run(feeds)
        for scores in results:
            divided = {site: self._split.sites[site] for site in sorted(scores.sites) if site in self._split.sites}
            whole = {site: self._group.gather(scores.sites[site], split) for site, split in divided.items()}
            scores.sites = {**scores.sites, **whole}
        return results

    @property
    def capabilities(self) -> Capabilities:
        """Where somebody looks at what is divided, a driver runs each pass."""

        def knows_here(choice: Choice) -> bool:
            return knows(choice) and not choice.sites & self._split.sites.keys()

        return replace(super().capabilities, sampler=DeviceSampler(knows_here, self._decode))


def stored_part(stored: StoredTensor, part: TensorPart) -> StoredTensor:
    """A part of a stored tensor: where it is some rows, as they lie in the file; otherwise a copy in memory."""
    if part.axis == 0 and len(part.ranges) == 1 and stored.layout is None:
        return stored.rows(part.ranges[0])
    if stored.kind not in DTYPES:
        raise ExecutorError(
            f"the GPU engine splits weights that are stored as floats, and {stored.name} is {stored.kind}. Use "
            f"{spell('executor', 'plain')}."
        )
    whole = torch.from_numpy(stored.to_float32())
    values = take_part(whole, part) if part.ranges else torch.zeros_like(whole)  # zeros: a bias that another rank adds
    numbers = values.to(DTYPES[stored.kind]).contiguous()
    content: Any = numbers.view(-1).view(torch.uint8).numpy()
    file = BufferedFile(stored.file.path, np.ascontiguousarray(content))
    return replace(stored, shape=tuple(numbers.shape), file=file, offset=0, size=content.size, layout=None)
