"""Every executor: ragged rows, and every move of the protocol, against the model run by itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.protocol import Feed, Want
from glassformer.ground.candidates import top
from glassformer.ground.errors import ExecutorError, InputError
from tests.engine.executors import EXECUTORS, Subject, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


WINDOWED = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("qwen3", {}), "windowed": ("qwen3", WINDOWED), "recurrent": ("qwen3_5_text", {}),
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    family, changes = KINDS[request.param]
    return write_checkpoint(tmp_path_factory.mktemp("rows"), family, **changes)


@pytest.fixture(params=EXECUTORS)
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    return checkpoint.with_executor(request.param)


def alone(subject: Subject, ids: Sequence[int]) -> np.ndarray[Any, Any]:
    """What the scores after these ids are, by one uncached pass."""
    with torch.no_grad():
        scores: np.ndarray[Any, Any] = subject.model(torch.tensor([list(ids)]), use_cache=False).logits[0, -1].numpy()
    return scores


def same(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return bool(np.allclose(one, other, atol=1e-4))


@pytest.mark.every_combination
def test_random_moves_score_like_an_uncached_pass(subject: Subject) -> None:
    """Open, feed, chunk, fork, select, rewind and close at random; every score equals an uncached pass."""
    draw = random.Random(3)
    executor = subject.executor()
    held: list[tuple[Any, list[int]]] = []
    for _ in range(80):
        move = draw.choice(["open", "run", "run", "run", "fork", "rewind", "close", "select"])
        if move == "open" or not held:
            held.append((executor.open(), []))
            move = "run"
        at = draw.randrange(len(held))
        row, ids = held[at]
        if move == "fork" and ids:
            length = draw.choice([None, draw.randint(1, len(ids))])
            held.append((executor.fork(row, length), ids[:length]))
        elif move == "rewind" and ids:
            length = draw.randint(0, len(ids) - 1)
            assert executor.rewind(row, length) == length
            del ids[length:]
        elif move == "close":
            executor.close(row)
            del held[at]
        elif move == "select":
            parents = [draw.randrange(len(held)) for _ in held]
            before = [list(ids) for _, ids in held]
            executor.select([row for row, _ in held], parents)
            held = [(row, list(before[parent])) for (row, _), parent in zip(held, parents, strict=True)]
        if move == "run":
            fed = [(n, [draw.randrange(160) for _ in range(draw.choice([1, 1, 2, 9]))])
                   for n in draw.sample(range(len(held)), draw.randint(1, len(held)))]  # fmt: skip
            found = executor.run([Feed(held[n][0], new) for n, new in fed])
            for (n, new), scores in zip(fed, found, strict=True):
                held[n][1].extend(new)
                assert same(scores.host(), alone(subject, held[n][1]))
        assert [row.length for row, _ in held] == [len(ids) for _, ids in held]


def test_want_none_last_and_all(subject: Subject) -> None:
    executor = subject.executor()
    ids = [4, 8, 15, 16, 23]
    row = executor.open()
    (nothing,) = executor.run([Feed(row, ids[:2], Want.NONE)])
    with pytest.raises(ExecutorError, match="Want.NONE"):
        nothing.host()
    (everything,) = executor.run([Feed(row, ids[2:], Want.ALL)])
    for index in range(3):
        assert same(everything.host(index), alone(subject, ids[: 3 + index]))


def test_token_tree_sees_only_ancestors(subject: Subject) -> None:
    """Branches in one row see their own ancestors only, and stand at their own depth."""
    executor = subject.executor()
    prompt = [4, 8, 15, 16, 23, 42, 7]
    row = executor.open()
    executor.run([Feed(row, prompt)])
    tokens, parents = [10, 11, 12, 13, 14], [-1, 0, 0, -1, 3]
    other = executor.open()
    found, plain = executor.run([Feed(row, tokens, Want.ALL, parents), Feed(other, [9, 9, 9])])
    paths = {0: [10], 1: [10, 11], 2: [10, 12], 3: [13], 4: [13, 14]}
    for index, path in paths.items():
        assert same(found.host(index), alone(subject, prompt + path))
    assert same(plain.host(), alone(subject, [9, 9, 9]))
    with pytest.raises(InputError, match="parent"):
        executor.run([Feed(executor.open(), [1, 2], parents=[1, -1])])


def test_scores_outlive_the_next_pass(subject: Subject) -> None:
    executor = subject.executor()
    row = executor.open()
    (first,) = executor.run([Feed(row, [3, 1, 4])])
    kept = first.host().copy()
    executor.run([Feed(row, [1])])
    assert np.array_equal(first.host(), kept)


def test_several_threads_share_an_executor(subject: Subject) -> None:
    """Each opens, forks and closes rows of its own while the others do; nobody sees another's numbers."""
    executor = subject.executor()
    texts = [[3 + number, 1, 4, 1 + number] for number in range(4)]
    expected = [[alone(subject, ids[: length + 1]) for length in range(len(ids))] for ids in texts]
    found: dict[int, list[bool]] = {number: [] for number in range(len(texts))}

    def live(number: int) -> None:
        for _ in range(10):
            row = executor.open()
            for token, wanted in zip(texts[number], expected[number], strict=True):
                (scores,) = executor.run([Feed(row, [token])])
                time.sleep(0.001)  # for the others to run meanwhile
                found[number].append(same(scores.host(), wanted))
                old, row = row, executor.fork(row)
                executor.close(old)
            executor.close(row)

    threads = [threading.Thread(target=live, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [True] * 40 for number in range(len(texts))}


def test_top_matches_softmax_of_all_scores(subject: Subject) -> None:
    executor = subject.executor()
    (scores,) = executor.run([Feed(executor.open(), [4, 8, 15])])
    best = scores.top(5)
    whole = torch.tensor(scores.host())
    assert best.ids.tolist() == whole.topk(5).indices.tolist()
    assert np.allclose(best.probabilities, whole.softmax(-1)[best.ids], atol=1e-6)
    assert top(scores.host(), 1000).ids.size == 160


def test_describe(subject: Subject) -> None:
    found = subject.executor().describe()
    assert (found.name, found.device) == (subject.name, "cpu")
    assert found.dtype == ("float32" if subject.name == "plain" else "F32")
    assert found.threads >= 1


class TestBadInput:
    def test_closed_and_foreign_rows_are_refused(self, subject: Subject) -> None:
        executor = subject.executor()
        row = executor.open()
        executor.close(row)
        for act in (
            lambda: executor.run([Feed(row, [1])]),
            lambda: executor.fork(row),
            lambda: executor.rewind(row, 0),
            lambda: executor.close(row),
            lambda: executor.select([row], [0]),
            lambda: executor.run([Feed(object(), [1])]),  # type: ignore[arg-type]
        ):
            with pytest.raises(ExecutorError, match="row is closed"):
                act()

    @pytest.mark.parametrize(
        ("ids", "message"), [([], "no tokens"), ([160], "id 160 is outside"), ([-1], "id -1 is outside")]
    )
    def test_empty_or_unknown_ids_are_refused(self, subject: Subject, ids: list[int], message: str) -> None:
        executor = subject.executor()
        row = executor.open()
        with pytest.raises(InputError, match=message):
            executor.run([Feed(row, ids)])
        assert row.length == 0

    def test_more_tokens_than_the_context_are_refused(self, subject: Subject) -> None:
        executor = subject.executor()
        row = executor.open()
        executor.run([Feed(row, [1] * 250, Want.NONE)])
        with pytest.raises(InputError, match="257 tokens"):
            executor.run([Feed(row, [1] * 7)])
        assert row.length == 250

    def test_source_without_an_encoder_is_refused(self, subject: Subject) -> None:
        with pytest.raises(ExecutorError, match="no encoder"):
            subject.executor().open([1, 2])
