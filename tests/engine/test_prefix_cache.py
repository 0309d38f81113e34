"""Keeping what was read: the same scores as an executor that forgets, with fewer tokens through the model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.engine.gpu.executor import GpuExecutor
from glassformer.engine.prefix_cache import PrefixCache
from glassformer.engine.protocol import Executor, Feed, Logits, Want
from glassformer.engine.row_states import MOST_SNAPSHOTS
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, InputError
from glassformer.ground.sites import Watch
from tests.capabilities import offering
from tests.engine.executors import EXECUTORS, Subject, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def short_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the GPU engine computed a few tokens as it computes a prompt."""
    whole = GpuExecutor.capabilities.fget
    monkeypatch.setattr(GpuExecutor, "capabilities", property(lambda self: replace(whole(self), min_prefill_tokens=1)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("kept"), "qwen3")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("states"), "qwen3_5_text")


@pytest.fixture(params=EXECUTORS)
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    return checkpoint.with_executor(request.param)


def scores_after(executor: Any, ids: list[int], more: int = 0) -> Any:
    """The scores after a text, of a row that is opened for it, goes on for a few tokens, and is closed."""
    row = executor.open()
    (scores,) = executor.run([Feed(row, ids)])
    found = np.array(scores.host())
    for token in range(more):
        executor.run([Feed(row, [token])])
    executor.close(row)
    return found


def test_conversation_reuses_its_prefix(subject: Subject) -> None:
    plain, keeping = subject.executor(), PrefixCache(subject.executor())
    text: list[int] = []
    for turn in range(5):
        text = [*text, *range(turn, turn + 6)]
        assert np.allclose(scores_after(keeping, text, more=3), scores_after(plain, text), atol=1e-4)
    assert keeping.reused_tokens == 6 + 12 + 18 + 24
    assert len(keeping._closed_rows) == 2  # what followed the turn before, and this one
    keeping.clear()
    assert not keeping._closed_rows


def test_rows_of_different_salts_share_nothing(subject: Subject) -> None:
    keeping, text = PrefixCache(subject.executor(), rows=8), [*range(20)]

    def read(salt: str | None) -> int:
        """How many tokens of the text are not read again, by a row of this salt."""
        row, before = keeping.open(salt=salt), keeping.reused_tokens
        assert keeping.cached_length(text, salt) == keeping.reuse_prefix(row, text)
        keeping.run([Feed(row, text[row.length :])])
        keeping.close(keeping.fork(row))
        keeping.close(row)
        return keeping.reused_tokens - before

    most = len(text) - keeping.capabilities.min_prefill_tokens
    assert [read(salt) for salt in ("a", "b", "a", None, "b", None)] == [0, 0, most, 0, most, most]
    keeping.clear()
    assert not keeping._index._roots


def test_random_moves_score_like_without_a_cache(subject: Subject) -> None:
    """Texts that share some beginnings, forks, rewinds and selects in between: every score is the plain one."""
    draw = random.Random(5)
    plain, keeping = subject.executor(), PrefixCache(subject.executor(), rows=3)
    for _ in range(40):
        ids = [draw.randrange(3) for _ in range(draw.randint(1, 12))]
        rows = [one.open() for one in (plain, keeping)]
        for _ in range(draw.randint(1, 3)):
            before = [np.array(one.run([Feed(row, ids)])[0].host()) for one, row in zip((plain, keeping), rows, strict=True)]
            assert np.allclose(*before, atol=1e-4)
            assert rows[0].length == rows[1].length
            ids = [draw.randrange(3) for _ in range(draw.randint(1, 4))]
            move = draw.choice(["fork", "rewind", "select", ""])
            half = max(1, rows[0].length // 2)
            for at, one in enumerate((plain, keeping)):
                if move == "fork":
                    old, rows[at] = rows[at], one.fork(rows[at], half)
                    one.close(old)
                elif move == "rewind":
                    one.rewind(rows[at], max(1, rows[at].length - 2))
                elif move == "select":
                    one.select([rows[at]], [0])
        for one, row in zip((plain, keeping), rows, strict=True):
            one.close(row)
    assert keeping.reused_tokens > 0


@pytest.mark.parametrize("name", EXECUTORS)
def test_rows_with_states_begin_at_snapshots(name: str, recurrent: Subject) -> None:
    """What is said to be cached is not read again: forks begin where a snapshot was taken."""
    executor = recurrent.with_executor(name).executor()
    executor._spacing = 4
    keeping, plain, draw = PrefixCache(executor, rows=8), recurrent.plain(), random.Random(1)
    for _ in range(25):
        ids = [5, 6, 7, 8, 9, 5, 6, 7, 8, 9][: draw.randint(3, 10)] + [draw.randrange(3) for _ in range(draw.randint(1, 9))]
        row, expected = keeping.open(), scores_after(plain, ids)
        reused = keeping.reuse_prefix(row, ids)
        inner: Any = row.inner
        assert reused == inner.length == inner.state.length
        (scores,) = keeping.run([Feed(row, ids[reused:])])
        assert np.allclose(scores.host(), expected, atol=1e-4)
        keeping.close(row)
    assert keeping.reused_tokens > 25


@pytest.mark.parametrize("name", EXECUTORS)
def test_rows_with_states_begin_before_the_end_of_a_prompt(name: str, recurrent: Subject) -> None:
    """The same prompt again, and a next turn that parts from it where the answer begins."""
    subject = recurrent.with_executor(name)
    keeping, draw = PrefixCache(subject.executor(), rows=8), random.Random(1)
    prompt = [draw.randrange(3, 90) for _ in range(60)]
    forgetting = subject.executor()
    for ids, reused in ((prompt, 0), (prompt, 44), ([*prompt[:-5], *range(3, 40)], 44), ([*prompt[:40], 7], 0)):
        before, expected = keeping.reused_tokens, scores_after(forgetting, ids)
        assert np.allclose(scores_after(keeping, ids, more=2), expected, rtol=0, atol=0 if name == "cpu" else 1e-4)
        assert keeping.reused_tokens - before == reused


def test_a_prompt_s_snapshot_outlives_a_long_answer(recurrent: Subject) -> None:
    executor = recurrent.cpu()
    executor._spacing = 40
    keeping, prompt = PrefixCache(executor), [*range(3, 63)]
    scores_after(keeping, prompt, more=100)
    scores_after(keeping, prompt)
    assert keeping.reused_tokens == 44


def test_a_row_is_as_long_as_before_a_prompt_s_second_pass_fails(
    recurrent: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, prompt = recurrent.cpu(), [*range(3, 63)]
    keeping, run = PrefixCache(executor), executor.run
    row = keeping.open()
    keeping.run([Feed(row, [3, 4])])

    def fail(feeds: Sequence[Feed]) -> Sequence[Logits]:
        if feeds[0].want is Want.LAST:
            raise ExecutorError("the pass fails")
        return run(feeds)

    monkeypatch.setattr(executor, "run", fail)
    with pytest.raises(ExecutorError):
        keeping.run([Feed(row, prompt)])
    monkeypatch.undo()
    assert row.length == 2
    (scores,) = keeping.run([Feed(row, prompt)])
    assert np.array_equal(scores.host(), scores_after(recurrent.cpu(), [3, 4, *prompt]))


def test_states_count_as_tokens(recurrent: Subject) -> None:
    """So that kept rows take no more memory than they may."""
    executor = recurrent.cpu()
    each = executor.describe().tokens_per_row
    assert each * executor.describe().cache_bytes_per_token >= 4 * recurrent.blueprint.state_size * (1 + MOST_SNAPSHOTS)
    for tokens, kept in ((2 * each + 30, 2), (each + 29, 1), (each - 1, 0)):
        keeping = PrefixCache(executor, rows=8, tokens=tokens)
        for first in range(4):
            scores_after(keeping, [first, *range(9)])
        assert len(keeping._closed_rows) == kept
        keeping.clear()


def test_all_scores_watches_and_trees_bypass_the_cache(subject: Subject) -> None:
    keeping = PrefixCache(subject.executor())
    ids = [3, 1, 4, 1, 5, 9]
    scores_after(keeping, ids)
    row = keeping.open()
    (scores,) = keeping.run([Feed(row, ids, Want.ALL)])
    assert all(scores.host(number).size for number in range(len(ids)))
    keeping.close(row)
    row = keeping.open()
    (scores,) = keeping.run([Feed(row, ids, watch=Watch(frozenset({"embedding"})))])
    assert scores.sites["embedding"].shape[1] == len(ids)
    keeping.close(row)
    row = keeping.open()
    keeping.run([Feed(row, [7, 8], parents=[-1, -1])])
    keeping.close(row)
    assert keeping.reused_tokens == 0


def test_the_last_token_is_always_read(subject: Subject) -> None:
    keeping = PrefixCache(subject.executor())
    first = scores_after(keeping, [1, 2, 3])
    assert np.allclose(scores_after(keeping, [1, 2, 3]), first, atol=1e-5)
    assert keeping.reused_tokens == 2


def test_empty_closed_and_foreign_rows(subject: Subject) -> None:
    keeping = PrefixCache(subject.executor())
    row = keeping.open()
    assert (row.length, keeping.rewind(row, 3)) == (0, 0)
    fork = keeping.fork(row)
    keeping.close(row)
    keeping.close(fork)
    for act in (lambda: keeping.close(row), lambda: keeping.run([Feed(row, [1])]), lambda: keeping.fork(row)):
        with pytest.raises(ExecutorError, match="row is closed"):
            act()
    with pytest.raises(InputError, match="outside the vocabulary"):
        keeping.run([Feed(keeping.open(), [10**6])])
    assert keeping.describe() == keeping.executor.describe()


class Counting:
    """An executor that says how much it was fed."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.fed: list[int] = []
        self.closed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.executor, name)

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        self.fed += [len(feed.ids) for feed in feeds]
        return self.executor.run(feeds)

    def close(self, row: Any) -> None:
        self.closed += 1
        self.executor.close(row)


def counting(tmp_path: Path, family: str, which: str) -> tuple[PrefixCache, Counting]:
    spy: Any = Counting(write_checkpoint(tmp_path, family).with_executor(which).executor())
    return PrefixCache(spy), spy


def after(executor: Any, ids: Sequence[int], **more: Any) -> Any:
    """The scores after these ids, in a row of their own."""
    row = executor.open()
    scores = executor.run([Feed(row, ids, **more)])[0].host().copy()
    executor.close(row)
    return scores


@pytest.mark.parametrize("which", EXECUTORS)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_only_tokens_after_the_common_prefix_are_fed(tmp_path: Path, family: str, which: str) -> None:
    """And the scores are those of a row that read it all; gemma's sliding window is shorter than what is kept."""
    kept, spy = counting(tmp_path, family, which)
    draw = np.random.default_rng(3)
    text = draw.integers(3, 150, 90).tolist()
    other = [*text[:60], *draw.integers(3, 150, 30).tolist()]
    fed = []
    for ids in (text[:40], text, text[:50], other, text[:20], text[:20]):
        spy.fed.clear()
        known = kept.cached_length(ids)
        found = after(kept, ids)
        fed.append(sum(spy.fed))
        assert fed[-1] == len(ids) - known
        np.testing.assert_allclose(found, after(spy.executor, ids), atol=1e-5, rtol=1e-4)
    assert fed == [40, 50, 1, 30, 1, 1]


def test_fork_select_and_rewind_keep_ids_in_step(tmp_path: Path) -> None:
    kept, spy = counting(tmp_path, "llama", "plain")
    row = kept.open()
    kept.run([Feed(row, [3, 4, 5, 6])])
    other = kept.fork(row, 2)
    assert other.ids == [3, 4]
    kept.run([Feed(other, [9])])
    kept.select([row, other], [1, 0])
    assert (row.ids, other.ids) == ([3, 4, 9], [3, 4, 5, 6])
    assert kept.rewind(other, 1) == 1
    assert other.ids == [3]
    kept.close(row)
    kept.close(other)
    assert [row.ids for row in kept._closed_rows.values()] == [[3, 4, 9]]  # which begins with the other
    assert kept.context == spy.context
    assert kept.describe() == spy.describe()


def test_only_the_last_closed_rows_are_kept(tmp_path: Path) -> None:
    kept, spy = counting(tmp_path, "llama", "plain")
    for first in (3, 4, 5, 6):
        after(kept, [first, 7, 8])
    assert len(kept._closed_rows) == 2
    assert spy.closed == 2


def test_changed_tree_and_failed_rows_are_not_kept(tmp_path: Path) -> None:
    """Rows that were changed, or held a tree, or broke off, are not kept; all scores asked for are computed."""
    kept, spy = counting(tmp_path, "llama", "plain")
    after(kept, [3, 4, 5], watch=Watch(changes={"blocks.0.residual": Change(scale=0)}))
    after(kept, [3, 4, 5], parents=[-1, 0, 0])
    broken = kept.open()
    with pytest.raises(InputError):
        kept.run([Feed(broken, [3, 4, 10_000])])
    kept.close(broken)
    assert (kept._closed_rows, spy.closed) == ({}, 3)
    after(kept, [3, 4, 5])
    assert len(kept._closed_rows) == 1
    row = kept.open()
    assert len(kept.run([Feed(row, [3, 4, 5], Want.ALL)])[0].host(0)) == 160
    assert spy.fed[-1] == 3


def test_select_of_a_changed_row_is_not_kept(tmp_path: Path) -> None:
    kept, spy = counting(tmp_path, "llama", "plain")
    rows = [kept.open(), kept.open()]
    kept.run([Feed(rows[0], [3, 4], watch=Watch(changes={"blocks.0.residual": Change(scale=0)})), Feed(rows[1], [3, 5])])
    kept.select(rows, [0, 0])
    for row in rows:
        kept.close(row)
    assert (kept._closed_rows, spy.closed) == ({}, 2)


def test_where_prompts_and_steps_differ_only_what_was_read_as_a_prompt_is_reused(tmp_path: Path) -> None:
    """And what is left of a prompt is long enough to be read as one."""
    inner: Any = Counting(write_checkpoint(tmp_path, "llama").with_executor("plain").executor())
    kept = PrefixCache(offering(inner, min_prefill_tokens=8))
    text = np.random.default_rng(3).integers(3, 150, 40).tolist()
    row = kept.open()
    kept.run([Feed(row, text[:20])])
    for token in text[20:25]:
        kept.run([Feed(row, [token])])
    kept.close(row)
    assert kept.cached_length(text) == 20  # not the five that came one by one
    assert kept.cached_length(text[:24]) == 16
    assert kept.cached_length(text[:8]) == 0
    np.testing.assert_allclose(after(kept, text), after(inner.executor, text), atol=1e-5, rtol=1e-4)
    assert inner.fed[-1] == 20
    assert kept.cached_length(text[:30]) == 22
    after(kept, text[:5])  # short prompts are steps: nobody finds them
    assert kept.cached_length([*text[:5], *range(3, 20)]) == 5
