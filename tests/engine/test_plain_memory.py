"""The memory of the plain executor's KV cache: as much as its rows need, and given back with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.engine.plain.executor import PlainExecutor
from glassformer.engine.plain.kv_cache import LayerBuffers
from glassformer.engine.protocol import Feed, Want
from tests.engine.executors import Subject, write_checkpoint

LONG = 256  # tokens


@pytest.fixture(scope="module", params=["llama", "t5"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder: Path = tmp_path_factory.mktemp(request.param)
    return write_checkpoint(folder, request.param, **({"max_position_embeddings": 512} if request.param == "llama" else {}))


@pytest.fixture
def executor(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> PlainExecutor:
    monkeypatch.setattr(LayerBuffers, "SMALL", 0)
    return subject.plain()


def tokens_held(executor: PlainExecutor) -> int:
    """For how many tokens there is room."""
    sizes = [tensors[0].shape for tensors in (executor._cache.text.tensors, executor._cache.source.tensors) if tensors]
    return sum(shape[1] * shape[3] for shape in sizes)


def opened(executor: Any, subject: Subject, length: int = 3) -> Any:
    row = executor.open([5] * 9) if subject.blueprint.encoder_blocks else executor.open()
    executor.run([Feed(row, [4] * length)])
    return row


def test_nothing_is_held_when_all_rows_are_closed(executor: PlainExecutor, subject: Subject) -> None:
    first = opened(executor, subject, LONG)
    rows = [executor.fork(first) for _ in range(9)]
    assert tokens_held(executor) >= 10 * LONG
    per_token = executor.describe().cache_bytes_per_token
    for row in (first, *rows):
        executor.close(row)
    assert tokens_held(executor) == 0
    assert executor.describe().cache_bytes_per_token == per_token > 0


def test_rows_that_stay_keep_what_they_need(executor: PlainExecutor, subject: Subject) -> None:
    """Many long rows come and go; what a short one computes afterwards is what it would have computed alone."""
    alone = opened(subject.plain(), subject)
    other = opened(executor, subject)
    rows = [opened(executor, subject, LONG) for _ in range(8)]
    full = tokens_held(executor)
    for row in rows:
        executor.close(row)
    assert tokens_held(executor) < full // 8
    expected = subject.plain()
    row = opened(expected, subject)
    assert alone.length == other.length
    wanted = expected.run([Feed(row, [7, 8], Want.ALL)])[0]
    scores = executor.run([Feed(other, [7, 8], Want.ALL)])[0]
    for at in range(2):
        assert np.allclose(scores.host(at), wanted.host(at), atol=1e-5)


def test_room_follows_the_rows_exactly_where_it_matters(executor: PlainExecutor, subject: Subject) -> None:
    """A row that grows by a token does not double the room of all."""
    rows = [opened(executor, subject, LONG) for _ in range(4)]
    executor.run([Feed(row, [4]) for row in rows])
    shape = executor._cache.text.tensors[0].shape
    assert shape[3] <= LONG + LONG // 4


def test_closing_in_any_order_keeps_the_others(executor: PlainExecutor, subject: Subject) -> None:
    draw = np.random.default_rng(0)
    rows = [opened(executor, subject, 3 + 60 * (number % 4)) for number in range(12)]
    order = draw.permutation(len(rows))
    for number in order[:-1]:
        executor.close(rows[number])
    last = rows[order[-1]]
    expected = subject.plain()
    row = opened(expected, subject, last.length)
    wanted = expected.run([Feed(row, [7])])[0].host()
    assert np.allclose(executor.run([Feed(last, [7])])[0].host(), wanted, atol=1e-5)
