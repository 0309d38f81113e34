"""A long prompt that is read in chunks, with reports: the same scores, and the same reuse of a cached prefix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassformer.engine.protocol import Feed, Want
from glassformer.engine.wrapped_executor import CHUNK, ReportingExecutor
from tests.see.models import both

IDS = [int(token) for token in np.random.default_rng(0).integers(3, 60, 2 * CHUNK + 40)]


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_reading_in_chunks_changes_no_score(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.engine.wrapped_executor.CHUNK", 16)
    inner: Any = both("llama", executor).model.executor
    reports: list[tuple[int, int]] = []
    reporting = ReportingExecutor(inner, lambda done, total: reports.append((done, total)))
    ids, short = IDS[:100], IDS[:7]
    rows = [reporting.open(), reporting.open(), inner.open(), inner.open()]
    chunked = reporting.run([Feed(rows[0], ids), Feed(rows[1], short)])
    scores = [row.host().copy() for row in chunked]
    whole = [row.host().copy() for row in inner.run([Feed(rows[2], ids), Feed(rows[3], short)])]
    assert [row.length for row in rows] == [100, 7, 100, 7]
    for ours, expected in zip(scores, whole, strict=True):
        assert np.array_equal(ours, expected) if executor == "cpu" else np.allclose(ours, expected, atol=1e-4)
    assert reports == [(16 * number, 107) for number in range(1, 7)]
    (scored,) = reporting.run([Feed(reporting.open(), ids, Want.ALL)])  # every position is wanted: not cut
    assert len(reports) == 6
    assert np.allclose(scored.host(99), whole[0], atol=1e-4)


def test_generate_tells_how_much_of_the_prompt_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.engine.wrapped_executor.CHUNK", 16)
    model = both("llama", "cpu").model.with_prefix_cache()
    text = "the cat sat on the mat " * 8
    reports: list[tuple[int, int]] = []

    def told(prompt: str) -> str:
        reports.clear()
        run = model.start(prompt, raw=True, max_new_tokens=3)
        return "".join(model.generate(run, progress=lambda done, total: reports.append((done, total))))

    first = told(text)
    length = len(model.tokenizer(text)["input_ids"])
    assert reports == [(done, length) for done in range(16, length, 16)]
    assert told(text) == first
    assert len(reports) <= 1  # it was read before
