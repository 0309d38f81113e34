"""Passes that are captured: what happens where there is no memory for a graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from glassformer.engine.gpu.graphs import CapturedPass, PassNumbers, capture
from glassformer.engine.gpu.passes import PassLayout


def test_a_pass_without_memory_for_its_graph_runs_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, passes = [False], 0

    @contextmanager
    def graph_capture(graph: Any, pool: Any) -> Iterator[None]:
        capturing[0] = True
        try:
            yield
        finally:
            capturing[0] = False

    class Stream:
        def wait_stream(self, other: Any) -> None:
            """There is nothing to wait for."""

    def run() -> int:
        nonlocal passes
        if capturing[0]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        passes += 1
        return passes

    for name, value in (("CUDAGraph", object), ("graph", graph_capture), ("Stream", Stream), ("current_stream", Stream)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    assert capture(run) == (None, 1)
    replay = CapturedPass(PassNumbers(PassLayout(1, 1, 1, 1), torch.device("cpu")), lambda numbers: [numbers + run()], None)
    for expected in (2, 3):  # without a graph, every call is a pass
        (result,) = replay()
        assert result is not None
        assert result[0] == expected
