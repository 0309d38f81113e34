"""Executors that choose the best tokens themselves: the same tokens and the same cache as pass by pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as files
import torch

from glassformer.decoding import Policy, StepDetail
from glassformer.decoding.loop import loop
from glassformer.engine.protocol import BEST, NOT_CHOSEN, Choice, Feed
from glassformer.ground.errors import ExecutorError, InputError
from glassformer.ground.sites import Watch, axes
from tests.capabilities import step_by_step
from tests.decoding.oracle import recipe
from tests.engine.executors import Subject, open_all, write_checkpoint

DECODERS = ("plain", "cpu", "gpu")
FAMILIES = ("llama", "gemma3_text", "gpt2", "t5")
COUNT = 9


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("decoding"), request.param)


@pytest.fixture(params=DECODERS)
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    return checkpoint.with_executor(request.param)


def decode(executor: Any, rows: Sequence[Any], tokens: Sequence[int], count: int) -> Any:
    sampler = executor.capabilities.sampler
    assert sampler.knows(BEST)
    return sampler.best(rows, tokens, count)


def by_passes(executor: Any, rows: Sequence[Any], tokens: Sequence[int], count: int) -> list[list[int]]:
    ids: list[list[int]] = [[] for _ in rows]
    for _ in range(count):
        scores = executor.run([Feed(row, (token,)) for row, token in zip(rows, tokens, strict=True)])
        tokens = [int(each.host().argmax()) for each in scores]
        for row_ids, token in zip(ids, tokens, strict=True):
            row_ids.append(token)
    return ids


@pytest.mark.every_combination
def test_ids_and_caches_are_those_of_single_passes(subject: Subject) -> None:
    prompts, sources = subject.rows((1, 9, 4, 20))
    executor = subject.executor()
    mine, others = (open_all(executor, prompts, sources) for _ in range(2))
    for rows in (mine, others):
        executor.run([Feed(row, ids) for row, ids in zip(rows, prompts, strict=True)])
    tokens = [ids[-1] for ids in prompts]
    decoded = decode(executor, mine, tokens, COUNT)
    assert decoded.tolist() == by_passes(executor, others, tokens, COUNT)
    assert [row.length for row in mine] == [row.length for row in others]
    last = decoded[:, -1].tolist()
    scores = [executor.run([Feed(row, (token,)) for row, token in zip(rows, last, strict=True)]) for rows in (mine, others)]
    for one, other in zip(*scores, strict=True):
        np.testing.assert_array_equal(one.host(), other.host())


SITES = ("embedding", "blocks.0.residual", "blocks.1.attention.heads", "blocks.1.mlp.hidden")


def test_scores_and_sites_are_those_of_single_passes(checkpoint: Subject) -> None:
    prompts, sources = checkpoint.rows((9, 4, 6))
    executor = checkpoint.cpu()
    mine, others = (open_all(executor, prompts, sources) for _ in range(2))
    for rows in (mine, others):
        executor.run([Feed(row, ids) for row, ids in zip(rows, prompts, strict=True)])
    choices = [Choice(candidates=3, sites=frozenset(SITES)), BEST, Choice(sites=frozenset(SITES[1:2]))]
    decoder = executor.capabilities.sampler
    assert decoder is not None
    assert all(map(decoder.knows, choices))
    texts = decoder.decode(mine, [3, 4, 5], choices, np.zeros((3, COUNT)))
    tokens = [3, 4, 5]
    for step in range(COUNT):
        feeds = [
            Feed(row, (token,), watch=Watch(choice.sites) if choice.sites else None)
            for row, token, choice in zip(others, tokens, choices, strict=True)
        ]
        for number, (text, passed) in enumerate(zip(texts, executor.run(feeds), strict=True)):
            assert text.ids[step] == int(passed.host().argmax())
            assert set(text.sites) == choices[number].sites
            for site, value in text.sites.items():
                np.testing.assert_array_equal(value.take([step], axes(site).index("length")), passed.sites[site])
            if number == 0:
                assert text.logits is not None
                np.testing.assert_array_equal(text.logits[step], passed.host())
            else:
                assert text.logits is None
        tokens = [text.ids[step] for text in texts]


def test_steps_carry_what_those_of_single_passes_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.decoding.loop.AHEAD_SECONDS", 1e9)
    executor = write_checkpoint(tmp_path, "llama").cpu()
    texts = []
    for chooser in (executor, step_by_step(executor)):
        policies = [Policy(recipe(max_new_tokens=20), [5, 9, last], context=64, detail=StepDetail.of(4)) for last in (3, 4)]
        steps = loop(chooser, policies, Watch(frozenset(SITES)))
        texts.append(sorted(steps, key=lambda numbered: numbered[0]))
    assert len(texts[0]) == 40
    for (number, ahead), (other, single) in zip(*texts, strict=True):
        assert number == other
        assert (ahead.id, ahead.finish, ahead.entropy) == (single.id, single.finish, single.entropy)
        for carried in ("candidates", "waterfall"):
            np.testing.assert_equal(asdict(getattr(ahead, carried)), asdict(getattr(single, carried)))
        np.testing.assert_equal(ahead.sites, single.sites)


@pytest.mark.parametrize("site", ["blocks.0.attention.pattern", "scores"])
def test_what_grows_with_the_text_is_left_to_the_loop(checkpoint: Subject, site: str) -> None:
    decoder = checkpoint.cpu().capabilities.sampler
    assert decoder is not None
    assert not decoder.knows(Choice(sites=frozenset((site,))))
    assert not decoder.knows(Choice(sampled=True))


def test_pages_that_are_shared_are_copied_first(subject: Subject) -> None:
    prompts, sources = subject.rows((9,))
    executor = subject.executor()
    (row,) = open_all(executor, prompts, sources)
    executor.run([Feed(row, prompts[0])])
    kept = executor.fork(row)
    first = decode(executor, [row], [3], COUNT).tolist()
    assert decode(executor, [kept], [3], COUNT).tolist() == first


def test_no_rows_are_no_work(subject: Subject) -> None:
    assert decode(subject.executor(), [], [], 3).shape == (0, 3)


def test_more_tokens_than_the_context_are_refused(subject: Subject) -> None:
    prompts, sources = subject.rows((4,))
    executor = subject.executor()
    (row,) = open_all(executor, prompts, sources)
    executor.run([Feed(row, prompts[0])])
    with pytest.raises(InputError, match="context"):
        decode(executor, [row], [3], subject.config.context)
    assert row.length == 4


def test_a_row_twice_and_a_closed_row_are_refused(subject: Subject) -> None:
    prompts, sources = subject.rows((4,))
    executor = subject.executor()
    (row,) = open_all(executor, prompts, sources)
    executor.run([Feed(row, prompts[0])])
    with pytest.raises(ExecutorError, match="twice"):
        decode(executor, [row, row], [3, 4], 2)
    executor.close(row)
    with pytest.raises(ExecutorError, match="closed"):
        decode(executor, [row], [3], 2)


@pytest.mark.parametrize("name", DECODERS)
def test_scores_that_are_not_numbers_are_marked_from_there_on(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama").folder

    path = folder / "model.safetensors"
    tensors = files.load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    subject = Subject(folder, name)
    executor = subject.executor()
    row = executor.open()
    executor.run([Feed(row, [5, 6])])
    (ids,) = decode(executor, [row], [7], 6).tolist()
    embedding = embedding.clone()
    embedding[ids[2]] = torch.nan
    files.save_file({**tensors, "model.embed_tokens.weight": embedding}, path)
    broken = Subject(folder, name).executor()
    row = broken.open()
    broken.run([Feed(row, [5, 6])])
    first = ids.index(ids[2])  # the token whose embedding is broken, once it is fed
    (marked,) = decode(broken, [row], [7], 6).tolist()
    assert marked == ids[: first + 1] + [NOT_CHOSEN] * (5 - first)
    assert row.length == 8


def test_a_rope_that_follows_the_length_of_a_row_is_left_to_the_loop(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama").folder
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    assert Subject(folder).cpu().capabilities.sampler is None
