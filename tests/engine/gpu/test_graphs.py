"""Passes that are captured: what happens where there is no memory for a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.engine.gpu.graphs import PassNumbers, Replay
from glassformer.engine.gpu.passes import PassLayout


def test_a_pass_without_memory_for_its_graph_runs_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, passes = [False], 0

    @contextmanager
    def capture(graph: Any, pool: Any) -> Iterator[None]:
        capturing[0] = True
        try:
            yield
        finally:
            capturing[0] = False

    def run(numbers: Tensor) -> list[Tensor | None]:
        nonlocal passes
        if capturing[0]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        passes += 1
        return [numbers + passes]

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    replay = Replay(PassNumbers(PassLayout(1, 1, 1, 1), torch.device("cpu")), run, None)
    replay._capture(None)
    for expected in (1, 2):
        (result,) = replay()
        assert result is not None
        assert result[0] == expected
