"""Rows of models whose layers keep a state: whatever is forked, rewound, drafted or read in pieces, the results stay."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.engine.cpu.library import levels
from glassformer.engine.protocol import Feed, Want
from glassformer.engine.row_states import MERGED, MOST_SNAPSHOTS, SPACING, RowState
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, InputError, SiteError
from tests.engine.executors import Subject, write_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

WIDE = {  # heads of more columns than one call of the kernel takes, and of a number that no vector divides
    "linear_key_head_dim": 20, "linear_value_head_dim": 45, "max_position_embeddings": 1024,
}  # fmt: skip
PATTERN, STATE = "blocks.0.attention.pattern", "blocks.0.attention.state"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("states"), "qwen3_5_text", **WIDE)


@pytest.mark.parametrize("name", ["plain", "cpu"])
@pytest.mark.parametrize("family", ["mamba2", "nemotron_h"])
def test_other_states_are_kept_as_well(family: str, name: str, tmp_path: Path) -> None:
    """Rows of Mamba-2's states, in pieces and after rewinds, and forked."""
    room = {"max_position_embeddings": 1024} if family == "nemotron_h" else {}
    subject = write_checkpoint(tmp_path, family, **room).with_executor(name)
    executor, ids = subject.executor(), ids_of(SPACING + 90)
    expected = {length: scores(executor, executor.open(), ids[:length]) for length in (40, 200, len(ids))}
    row, atol = executor.open(), 0 if name == "cpu" else 1e-4
    for first, last in ((0, 7), (7, 8), (8, len(ids))):
        scores(executor, row, ids[first:last])
    for length in (200, 40, len(ids)):
        executor.rewind(row, min(length - 1, row.length))
        assert np.allclose(scores(executor, row, ids[row.length : length]), expected[length], rtol=0, atol=atol)
    fork = executor.fork(row, 100)
    assert np.allclose(scores(executor, fork, ids[100:200]), expected[200], rtol=0, atol=atol)


@pytest.fixture(params=["plain", "cpu", "gpu"])
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    return checkpoint.with_executor(request.param)


def ids_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 160) for _ in range(length)]


def scores(executor: Any, row: Any, ids: list[int], want: Want = Want.LAST) -> Any:
    (logits,) = executor.run([Feed(row, ids, want)])
    return logits.host().copy()


def test_a_long_text_in_pieces_and_after_rewinds_is_as_at_once(subject: Subject) -> None:
    """The CPU engine computes each column of a state by itself, so that there not one bit differs."""
    executor, ids = subject.executor(), ids_of(3 * SPACING + 50)
    expected = {length: scores(executor, executor.open(), ids[:length]) for length in (40, SPACING, 600, len(ids))}
    row = executor.open()
    for first, last in ((0, 7), (7, 8), (8, 300), (300, 601), (601, 700)):
        scores(executor, row, ids[first:last])
    atol = 0 if subject.name == "cpu" else 1e-4
    for length in (600, 40, len(ids), SPACING):
        executor.rewind(row, min(length - 1, row.length))
        assert np.allclose(scores(executor, row, ids[row.length : length]), expected[length], rtol=0, atol=atol)
    fork = executor.fork(row, 100)
    assert np.allclose(scores(executor, fork, ids[100:600]), expected[600], rtol=0, atol=atol)


def test_a_draft_that_is_rejected_leaves_nothing(subject: Subject) -> None:
    executor, ids = subject.executor(), ids_of(60)
    row = executor.open()
    scores(executor, row, ids[:50])
    for kept in (0, 2, 4):
        (drafted,) = executor.run([Feed(row, [ids[50 + n] if n < kept else 9 for n in range(5)], Want.ALL)])
        for place in range(kept):
            alone = scores(executor, executor.open(), ids[: 51 + place])
            assert np.allclose(drafted.host(place), alone, atol=1e-4)
        executor.rewind(row, 50)
    assert np.allclose(scores(executor, row, ids[50:]), scores(executor, executor.open(), ids), atol=1e-4)


def test_drafts_that_are_accepted_are_read_once_more_and_not_ever_again(subject: Subject) -> None:
    """Each begins where the last one was accepted: what a state has to read again stays short, and the scores stay right."""
    executor, ids = subject.executor(), ids_of(120)
    row, unread = executor.open(), []
    scores(executor, row, ids[:20])
    while row.length < 110:
        start = row.length
        (drafted,) = executor.run([Feed(row, [*ids[start : start + 4], 9], Want.ALL)])
        assert np.allclose(drafted.host(3), scores(executor, executor.open(), ids[: start + 4]), atol=1e-4)
        executor.rewind(row, start + 4)
        unread.append(row.length - row.state.length)
    assert max(unread) <= MERGED + 4


def test_a_draft_after_a_rejected_one_may_be_watched_and_needs_no_further_pass(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read again goes through with it, and the sites are those of its own tokens."""
    executor, ids, watch = subject.executor(), ids_of(60), subject.watch("final", "blocks.2.attention.decay")
    whole = executor.open()
    executor.run([Feed(whole, ids[:50])])
    (expected,) = executor.run([Feed(whole, ids[50:55], Want.ALL, watch=watch)])
    wanted = {site: np.asarray(value).copy() for site, value in expected.sites.items()}
    logits = [expected.host(place).copy() for place in range(5)]
    row = executor.open()
    executor.run([Feed(row, ids[:48])])
    executor.run([Feed(row, [*ids[48:50], 7, 7, 7], Want.ALL, watch=watch)])
    executor.rewind(row, 50)
    passes, run = [], executor._run_feeds

    def counted(feeds: Any, rows: Any) -> Any:
        passes.append(feeds)
        return run(feeds, rows)

    monkeypatch.setattr(executor, "_run_feeds", counted)
    (made,) = executor.run([Feed(row, ids[50:55], Want.ALL, watch=watch)])
    assert len(passes) == 1
    for site, value in wanted.items():
        assert made.sites[site].shape == value.shape
        assert np.allclose(np.asarray(made.sites[site]), value, rtol=0, atol=1e-4), site
    for place, scored in enumerate(logits):
        assert np.allclose(made.host(place), scored, rtol=0, atol=1e-4)
    executor.rewind(row, 50)
    (last,) = executor.run([Feed(row, ids[50:52], watch=watch)])
    assert np.allclose(np.asarray(last.sites["final"]), wanted["final"][:, :2], rtol=0, atol=1e-4)
    assert np.allclose(last.host(), logits[1], rtol=0, atol=1e-4)


def test_a_row_whose_pass_fails_goes_on(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, ids = subject.executor(), ids_of(30)
    row = executor.open()
    scores(executor, row, ids[:20])

    def fail(*arguments: Any, **named: Any) -> None:
        row.state.memory = None  # as if a part of the pass had been computed
        raise InputError("the pass failed")

    with monkeypatch.context() as patched:
        patched.setattr(executor, "_run_pass", fail)
        with pytest.raises(InputError, match="failed"):
            scores(executor, row, ids[20:25])
    assert row.length == 20
    assert np.allclose(scores(executor, row, ids[20:]), scores(executor, executor.open(), ids), atol=1e-4)


def test_a_pattern_is_read_in_later_passes_too(subject: Subject) -> None:
    executor, ids = subject.executor(), ids_of(40)
    watch = subject.watch(PATTERN, "blocks.0.attention.heads")
    (whole,) = executor.run([Feed(executor.open(), ids, watch=watch)])
    row = executor.open()
    scores(executor, row, ids[:30])
    (later,) = executor.run([Feed(row, ids[30:], watch=watch)])
    for site in (PATTERN, "blocks.0.attention.heads"):
        expected, found = (np.asarray(sites[site])[..., -10:, :] for sites in (whole.sites, later.sites))
        assert found.shape == expected.shape
        assert np.allclose(found, expected, atol=1e-5)
    assert np.allclose(later.host(), whole.host(), atol=1e-4)
    changed = subject.watch(changes={PATTERN: Change(scale=0.0)})
    with pytest.raises(ExecutorError, match="whole text"):
        executor.run([Feed(row, [5], watch=changed)])


def test_a_state_is_read_changed_and_kept(subject: Subject) -> None:
    executor, ids = subject.executor(), ids_of(40)
    row = executor.open()
    (emptied,) = executor.run([Feed(row, ids, watch=subject.watch(STATE, changes={STATE: Change(scale=0.0)}))])
    assert not np.asarray(emptied.sites[STATE]).any()
    (after,) = executor.run([Feed(row, [7], watch=subject.watch("blocks.0.attention.write", STATE))])
    state, write = (np.asarray(after.sites[site]) for site in (STATE, "blocks.0.attention.write"))
    assert np.linalg.matrix_rank(state[0, 0], tol=1e-5) == 1  # what one token wrote
    assert write.shape == (1, 1, 4)
    with pytest.raises(SiteError, match="is measured"):
        subject.watch(changes={f"{STATE}_norm": Change(scale=0.0)})


def test_a_tree_is_read_branch_by_branch(subject: Subject) -> None:
    executor, ids = subject.executor(), ids_of(20)
    row = executor.open()
    scores(executor, row, ids)
    tree = Feed(row, [11, 12, 13], Want.ALL, parents=[-1, 0, -1])
    (found,) = executor.run([tree])
    assert np.allclose(found.host(1), scores(executor, executor.open(), [*ids, 11, 12]), atol=1e-4)
    with pytest.raises(ExecutorError, match="several branches"):
        executor.run([Feed(row, [14])])
    executor.rewind(row, 22)  # the branch that begins it
    assert np.allclose(scores(executor, row, [14]), scores(executor, executor.open(), [*ids, 11, 12, 14]), atol=1e-4)
    with pytest.raises(ExecutorError, match="cannot be watched"):
        executor.run([Feed(row, [1, 2], parents=[-1, -1], watch=subject.watch("final"))])


def test_a_pass_in_pytorch_cannot_look_back_for_a_pattern(checkpoint: Subject) -> None:
    import torch

    model = checkpoint.model
    begun = model(torch.tensor([ids_of(5)]), use_cache=True)
    with pytest.raises(InputError, match="earlier passes"):
        model(torch.tensor([[4]]), past_key_values=begun.past_key_values, watch=PATTERN)
    with pytest.raises(InputError, match="cannot go on"):
        model.generate(torch.tensor([[*ids_of(5), 4]]), past_key_values=begun.past_key_values)


@pytest.mark.parametrize("level", levels())
def test_levels_agree(checkpoint: Subject, level: str) -> None:
    ids = ids_of(70)
    found, expected = (scores(one, one.open(), ids, Want.ALL) for one in (checkpoint.cpu(level=level), checkpoint.plain()))
    assert np.allclose(found, expected, atol=1e-4)


def test_a_prompt_s_snapshot_stays() -> None:
    state = RowState(memory=np.zeros(1))
    for length in range(10, 4000, 10):
        state.length = length
        state.keep(prompt=length in (50, 70))
        assert len(state.snapshots) <= MOST_SNAPSHOTS
    lengths = [snapshot.length for snapshot in state.snapshots]
    assert lengths == sorted(lengths)
    assert lengths[0] == 70
    assert lengths[-1] == 3990


def test_snapshots_thin_out_with_age() -> None:
    state = RowState(memory=np.zeros(1))
    for length in range(64, 64 * 65, 64):
        state.length = length
        state.keep()
    gaps = np.diff([snapshot.length for snapshot in state.snapshots])
    assert len(state.snapshots) < 10
    assert all(later <= earlier for earlier, later in pairwise(gaps))
    state.go_back(1000)
    assert state.length is not None
    assert state.length <= 1000
