"""What only GPUs can show of a model that is split among ranks.

    python -m tests.engine.gpu.rank_proof

Where there is one card, two ranks share it and add up through gloo, whose sums no graph can capture; NCCL, which wants a
card for each rank, then runs on one rank. Where there are several, NCCL runs on two. Each line says how far the split model
is from the whole one, and the proof ends with an error if that is more than rounding.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from glassformer.engine.gpu import kernels
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.gpu.split_executor import SplitGpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import NO_EXTRAS, Executor, Feed
from glassformer.engine.tensor_parallel.executor import TensorParallelExecutor
from glassformer.engine.tensor_parallel.process_group import ProcessGroup, join
from glassformer.engine.tensor_parallel.ranks import RankProcesses
from glassformer.model_files import ModelFiles, open_model
from glassformer.runtime.executors import ExecutorOptions, Executors, SplitModel
from glassformer.see.verification import FLOATS, verify

CARD = torch.device("cuda", 0)
KERNELS: Any = kernels
PROMPTS = [[5, 9, 14, 3], [77], list(range(100, 230))]  # the last one is long enough for the kernels of prompts
NEW_TOKENS = 32


class WithoutGraphs(SplitGpuExecutor):
    """Every pass has launches of its own: gloo's sums go through the host."""

    capabilities = NO_EXTRAS  # type: ignore[assignment]

    def _captured_shape(self, *arguments: Any) -> None:
        return None


@dataclass(frozen=True)
class OnOneCard:
    """A part for a rank that shares its card with the others."""

    path: str
    engine: str

    def load(self, group: ProcessGroup) -> Executor:
        shared = replace(group, device=CARD)
        if self.engine == "plain":
            return SplitModel(self.path, dtype="float32").load(shared)
        opened = open_model(self.path)
        return WithoutGraphs(opened.config, opened.blueprint(), opened.tensors, shared, cache="f32", kernels=KERNELS)


def greedy_ids(executor: Executor) -> list[list[int]]:
    """What follows each prompt, chosen by the executor itself where it can."""
    rows = [executor.open() for _ in PROMPTS]
    scores = executor.run([Feed(row, prompt) for row, prompt in zip(rows, PROMPTS, strict=True)])
    ids = [[int(score.host().argmax())] for score in scores]
    if (sampler := executor.capabilities.sampler) is not None:
        chosen = sampler.best(rows, [own[0] for own in ids], NEW_TOKENS)
        return [[*own, *tokens] for own, tokens in zip(ids, chosen.tolist(), strict=True)]
    for _ in range(NEW_TOKENS):
        scores = executor.run([Feed(row, own[-1:]) for row, own in zip(rows, ids, strict=True)])
        for own, score in zip(ids, scores, strict=True):
            own.append(int(score.host().argmax()))
    return ids


def prove(name: str, whole: Executor, split: Executor, opened: ModelFiles) -> None:
    verdict = verify(whole, split, PROMPTS, opened.blueprint().site_names)
    same = greedy_ids(whole) == greedy_ids(split)
    print(f"{name}: error {verdict.worst.error:.1e} at {verdict.worst.site}, same ids: {same}", flush=True)
    assert verdict.agrees(10 * FLOATS), verdict
    assert same


def main() -> None:
    from tests.parity import reference

    folder = Path(tempfile.mkdtemp())
    reference.write(folder, "qwen3", hidden_size=256, intermediate_size=512, head_dim=64, vocab_size=1000)
    opened = open_model(folder)
    module = Executors(opened, ExecutorOptions("plain", "float32")).module.to(CARD)
    plain: Executor = PlainExecutor(module)
    gpu = GpuExecutor(opened.config, opened.blueprint(), opened.tensors, cache="f32", device=CARD, kernels=KERNELS)
    shared = RankProcesses(2)
    prove(
        "plain, two ranks on one card, gloo", plain, TensorParallelExecutor(shared, OnOneCard(str(folder), "plain")), opened
    )
    prove(
        "GPU engine, two ranks on one card, gloo", gpu, TensorParallelExecutor(shared, OnOneCard(str(folder), "gpu")), opened
    )
    if torch.cuda.device_count() > 1:
        ranks = RankProcesses(2, "cuda")
        part = SplitModel(str(folder), dtype="float32")
        prove("plain, two cards, NCCL", plain, TensorParallelExecutor(ranks, part), opened)
        part = SplitModel(str(folder), executor="gpu", cache="f32")
        prove("GPU engine, two cards, NCCL in graphs", gpu, TensorParallelExecutor(ranks, part), opened)
    elif CARD.type == "cuda":
        group = join(Path(tempfile.mkdtemp()), 0, 1, "cuda", 60)
        alone = SplitGpuExecutor(opened.config, opened.blueprint(), opened.tensors, group, cache="f32")
        prove("GPU engine, one rank, NCCL in graphs", gpu, alone, opened)
        prove("plain, one rank, NCCL", plain, SplitModel(str(folder), dtype="float32").load(group), opened)


if __name__ == "__main__":
    from tests.engine.gpu import rank_proof  # under its own name, by which other ranks find its classes

    sys.exit(rank_proof.main())
