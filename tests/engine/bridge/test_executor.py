"""The bridge's executor: every move of the protocol against the model run by itself, whatever its cache can do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.changes import Change
from glassformer.ground.errors import ExecutorError, SiteError
from glassformer.ground.sites import Watch
from tests.engine.bridge import families

pytestmark = pytest.mark.usefixtures("one_thread")

CONTINUES = {"mamba": "by tokens", "codegen": "by chunks", "recurrent_gemma": "never", "rwkv": "by chunks"}


@cache
def both(kind: str) -> tuple[Any, Any]:
    folder = Path(mkdtemp())
    reference = families.write(folder, kind)
    return glassformer.load(folder), reference


def alone(kind: str, ids: Sequence[int], index: int = -1) -> np.ndarray[Any, Any]:
    """The reference's scores after these ids, by one uncached pass."""
    with torch.no_grad():
        scores: np.ndarray[Any, Any] = both(kind)[1](torch.tensor([list(ids)]), use_cache=False).logits[0, index].numpy()
    return scores


def same(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, atol=1e-3, rtol=1e-3))


@pytest.mark.parametrize("kind", CONTINUES)
def test_random_moves_score_like_an_uncached_pass(kind: str) -> None:
    """Open, feed, chunk, fork, select, rewind and close at random; every score equals an uncached pass."""
    model, _ = both(kind)
    assert model.opened.model.anatomy.continues == CONTINUES[kind]
    draw, executor = random.Random(5), model.executor
    held: list[tuple[Any, list[int]]] = []
    for _ in range(50):
        move = draw.choice(["open", "run", "run", "run", "fork", "rewind", "close", "select"])
        if move == "open" or not held:
            held.append((executor.open(), []))
            move = "run"
        row, ids = held[at := draw.randrange(len(held))]
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
            fed = [(n, [draw.randrange(5, 120) for _ in range(draw.choice([1, 1, 2, 5]))])
                   for n in draw.sample(range(len(held)), min(len(held), draw.randint(1, 3)))
                   if len(held[n][1]) < 50]  # fmt: skip
            found = executor.run([Feed(held[n][0], new) for n, new in fed])
            for (n, new), scores in zip(fed, found, strict=True):
                held[n][1].extend(new)
                assert same(scores.host(), alone(kind, held[n][1]))
        assert [row.length for row, _ in held] == [len(ids) for _, ids in held]


@pytest.mark.parametrize("kind", CONTINUES)
def test_a_row_that_is_read_again_keeps_the_changes_of_its_tokens(kind: str) -> None:
    """Fed under a change, then rewound into what was changed, and fed on without it: the change stays with its tokens."""
    model, site = both(kind)[0], "blocks.0.residual"
    change = Watch(changes={site: Change(scale=0, neurons=[*range(16)])})
    ids = [5, 9, 31, 44, 17, 80, 6]
    first = model.executor.open()
    model.executor.run([Feed(first, ids[:4], watch=change)])
    (expected,) = model.executor.run([Feed(first, ids[4:5])])
    again = model.executor.open()
    model.executor.run([Feed(again, [*ids[:4], 99, 98], watch=change)])
    model.executor.rewind(again, 4)
    (found,) = model.executor.run([Feed(again, ids[4:5])])
    assert same(found.host(), expected.host())
    assert not same(found.host(), alone(kind, ids[:5]))


@pytest.mark.parametrize("kind", CONTINUES)
def test_a_tree_of_guesses(kind: str) -> None:
    executor, prompt = both(kind)[0].executor, [5, 9, 31]
    row = executor.open()
    executor.run([Feed(row, prompt, Want.NONE)])
    tokens, parents = [10, 11, 12, 13, 14], [-1, 0, 0, -1, 3]
    watch = Watch(frozenset({"blocks.0.residual"}))
    (found,) = executor.run([Feed(row, tokens, Want.ALL, parents, watch)])
    for index, path in {0: [10], 1: [10, 11], 2: [10, 12], 3: [13], 4: [13, 14]}.items():
        assert same(found.host(index), alone(kind, prompt + path))
    assert found.sites["blocks.0.residual"].shape[:2] == (1, 5)
    with pytest.raises(ExecutorError, match="Rewind"):
        executor.run([Feed(row, [7])])
    executor.rewind(row, 3)
    (after,) = executor.run([Feed(row, [10])])
    assert same(after.host(), alone(kind, [*prompt, 10]))


@pytest.mark.parametrize("kind", CONTINUES)
def test_want(kind: str) -> None:
    executor, ids = both(kind)[0].executor, [5, 9, 31, 44]
    row = executor.open()
    (nothing,) = executor.run([Feed(row, ids[:2], Want.NONE)])
    with pytest.raises(ExecutorError, match="Want.NONE"):
        nothing.host()
    (everything,) = executor.run([Feed(row, ids[2:], Want.ALL)])
    assert same(everything.host(0), alone(kind, ids, 2))
    assert same(everything.host(1), alone(kind, ids, 3))


def test_a_pattern_is_read_and_not_changed() -> None:
    model, _ = both("codegen")
    with pytest.raises(SiteError, match=r"blocks\.0\.attention\.update"):
        model.changed({"blocks.0.attention.pattern": Change(scale=0)}).chat([5, 9])


def test_a_failed_pass_leaves_its_row_as_it_was() -> None:
    model, _ = both("mamba")
    row = model.executor.open()
    model.executor.run([Feed(row, [5, 9, 31])])
    with pytest.raises(SiteError, match="neuron"):
        model.executor.run([Feed(row, [44], watch=Watch(changes={"blocks.0.residual": Change(neurons=[99], scale=0)}))])
    assert row.length == 3
    (found,) = model.executor.run([Feed(row, [44])])
    assert same(found.host(), alone("mamba", [5, 9, 31, 44]))


def test_beams_samples_and_drafts_are_those_of_one_text_at_a_time() -> None:
    model, reference = both("mamba")
    prompt = [5, 9, 31, 44]
    beams = model.watch_many(prompt, num_beams=3, num_return_sequences=3, max_new_tokens=6, eos_token_id=None)
    expected = reference.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, 4), num_beams=3, num_return_sequences=3, max_new_tokens=6,
        eos_token_id=None, do_sample=False, use_cache=True,
    )  # fmt: skip
    assert [list(run.ids) for run in beams] == expected[:, 4:].tolist()
    sampled = model.watch(prompt, do_sample=True, seed=3, max_new_tokens=6, eos_token_id=None)
    assert sampled.ids == model.watch(prompt, do_sample=True, seed=3, max_new_tokens=6, eos_token_id=None).ids
    assert model.replay(sampled).identical
    cached = model.with_prefix_cache()
    assert [cached.watch(prompt, max_new_tokens=6).ids for _ in range(2)] == [model.watch(prompt, max_new_tokens=6).ids] * 2
