"""Executors over a checkpoint, by name: what tests of the protocol, and of one engine against another, begin with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer.blueprints import Blueprint
from glassformer.compat import auto
from glassformer.engine.cpu.executor import CpuExecutor
from glassformer.engine.cpu.library import Engine
from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.protocol import Executor, Feed, Want
from glassformer.ground.sites import Watch
from glassformer.model_files import ModelFiles, open_model
from glassformer.quantize import requantize
from glassformer.runtime.executors import ExecutorOptions, Executors
from glassformer.see.verification import Verdict, verify_all
from tests.engine.gpu import torch_kernels
from tests.parity import reference

EXECUTORS = ("plain", "cpu", "gpu")
LENGTHS = (1, 9, 4, 20)  # of prompts


@dataclass
class Subject:
    """A checkpoint, the PyTorch model of it in float32, and executors over both."""

    folder: Path
    name: str = "plain"  # the executor that is looked at

    @cached_property
    def opened(self) -> ModelFiles:
        return open_model(self.folder)

    @cached_property
    def blueprint(self) -> Blueprint:
        return self.opened.blueprint()

    @property
    def config(self) -> Any:
        return self.opened.config

    @cached_property
    def model(self) -> Any:
        ending = "Seq2SeqLM" if self.blueprint.encoder_blocks else "CausalLM"
        loaded = getattr(auto, f"AutoModelFor{ending}").from_pretrained(self.folder, dtype=torch.float32)
        return loaded.requires_grad_(False)

    def with_executor(self, name: str) -> Subject:
        """The subject with another executor to look at."""
        _ = self.model, self.blueprint  # loaded once for all
        found = copy(self)
        found.name = name
        return found

    def executor(self) -> Any:
        return {"plain": self.plain, "cpu": self.cpu, "gpu": self.gpu}[self.name]()

    def plain(self) -> PlainExecutor:
        return PlainExecutor(self.model)

    def cpu(
        self, cache: str | None = "f32", activations: str = "q14", level: str | None = None, threads: int | None = None
    ) -> CpuExecutor:
        engine = Engine(level, threads)
        tensors = self.opened.tensors
        return CpuExecutor(self.config, self.blueprint, tensors, cache=cache, activations=activations, engine=engine)

    def gpu(self, cache: str | None = "f32", kernels: Any = torch_kernels) -> GpuExecutor:
        """The GPU engine on the CPU; with `kernels` written in PyTorch, or the real ones under Triton's interpreter."""
        device = torch.device("cpu")
        return GpuExecutor(self.config, self.blueprint, self.opened.tensors, cache=cache, device=device, kernels=kernels)

    def rows(self, lengths: Sequence[int] = LENGTHS, seed: int = 1) -> tuple[list[list[int]], list[list[int]] | None]:
        """Prompts of random ids of several lengths, and sources for them where the model has an encoder."""
        draw, room = random.Random(seed), self.config.context

        def ids(length: int) -> list[int]:
            return [draw.randrange(3, self.config.vocab_size) for _ in range(min(length, room))]

        prompts = [ids(length) for length in lengths]
        return prompts, [ids(length) for length in reversed(lengths)] if self.blueprint.encoder_blocks else None

    def watch(self, *patterns: str, **changes: Any) -> Watch:
        return Watch.of(*patterns, names=self.blueprint.site_names, **changes)

    def verdict(self, other: Executor, lengths: Sequence[int] = LENGTHS) -> Verdict:
        """Another executor beside the plain one in float32."""
        return self.verdicts([other], lengths)[0]

    def verdicts(self, others: Sequence[Executor], lengths: Sequence[int] = LENGTHS) -> list[Verdict]:
        prompts, sources = self.rows(lengths)
        return verify_all(self.plain(), others, prompts, self.blueprint.site_names, sources)


@dataclass
class RequantizedSubject(Subject):
    """A folder whose weights are packed in another kind, as `load(…, weights=…)` does it."""

    kind: str = "q8_0"

    @cached_property
    def opened(self) -> ModelFiles:
        opened = open_model(self.folder)
        return replace(opened, replacement_tensors=requantize(opened, self.kind))

    @cached_property
    def model(self) -> Any:
        return Executors(self.opened, ExecutorOptions("plain", "float32")).module


def write_checkpoint(folder: Path, family: str, **changes: Any) -> Subject:
    """A tiny model of a family, written by the reference."""
    reference.write(folder, family, "seq2seq" if family in reference.PAIRS else "causal", **changes)
    return Subject(folder)


def open_all(executor: Any, prompts: Sequence[Any], sources: Sequence[Sequence[int]] | None) -> list[Any]:
    """A row for each prompt."""
    return [executor.open() for _ in prompts] if sources is None else [executor.open(source) for source in sources]


def scores_of(executor: Any, rows: Sequence[Any], ids: Sequence[Sequence[int]], watch: Watch | None = None) -> list[Any]:
    """The scores of every position of every row after one pass over all: (positions, vocabulary) each."""
    found = executor.run([Feed(row, some, Want.ALL, watch=watch) for row, some in zip(rows, ids, strict=True)])
    return [np.stack([one.host(at) for at in range(len(some))]) for one, some in zip(found, ids, strict=True)]
