"""Executors that choose the best tokens themselves: the same tokens and the same cache as pass by pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch as files
import torch

from glassformer.engine.protocol import NOT_NUMBERS, Feed, ahead_decoder
from glassformer.errors import ExecutorError, InputError
from tests.engine.executors import Subject, open_all, write_checkpoint

DECODERS = ("cpu", "gpu")
FAMILIES = ("llama", "gemma3_text", "gpt2", "t5")
COUNT = 9


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return write_checkpoint(tmp_path_factory.mktemp("decoding"), request.param)


@pytest.fixture(params=DECODERS)
def subject(checkpoint: Subject, request: pytest.FixtureRequest) -> Subject:
    return checkpoint.with_executor(request.param)


def by_passes(executor: Any, rows: Sequence[Any], tokens: Sequence[int], count: int) -> list[list[int]]:
    ids: list[list[int]] = [[] for _ in rows]
    for _ in range(count):
        scores = executor.run([Feed(row, (token,)) for row, token in zip(rows, tokens, strict=True)])
        tokens = [int(each.host().argmax()) for each in scores]
        for row_ids, token in zip(ids, tokens, strict=True):
            row_ids.append(token)
    return ids


def test_ids_and_caches_are_those_of_single_passes(subject: Subject) -> None:
    prompts, sources = subject.rows((1, 9, 4, 20))
    executor = subject.executor()
    mine, others = (open_all(executor, prompts, sources) for _ in range(2))
    for rows in (mine, others):
        executor.run([Feed(row, ids) for row, ids in zip(rows, prompts, strict=True)])
    tokens = [ids[-1] for ids in prompts]
    decoded = executor.decode_greedily(mine, tokens, COUNT)
    assert decoded.tolist() == by_passes(executor, others, tokens, COUNT)
    assert [row.length for row in mine] == [row.length for row in others]
    last = decoded[:, -1].tolist()
    scores = [executor.run([Feed(row, (token,)) for row, token in zip(rows, last, strict=True)]) for rows in (mine, others)]
    for one, other in zip(*scores, strict=True):
        np.testing.assert_array_equal(one.host(), other.host())


def test_pages_that_are_shared_are_copied_first(subject: Subject) -> None:
    prompts, sources = subject.rows((9,))
    executor = subject.executor()
    (row,) = open_all(executor, prompts, sources)
    executor.run([Feed(row, prompts[0])])
    kept = executor.fork(row)
    first = executor.decode_greedily([row], [3], COUNT).tolist()
    assert executor.decode_greedily([kept], [3], COUNT).tolist() == first


def test_no_rows_are_no_work(subject: Subject) -> None:
    assert subject.executor().decode_greedily([], [], 3).shape == (0, 3)


def test_more_tokens_than_the_context_are_refused(subject: Subject) -> None:
    prompts, sources = subject.rows((4,))
    executor = subject.executor()
    (row,) = open_all(executor, prompts, sources)
    executor.run([Feed(row, prompts[0])])
    with pytest.raises(InputError, match="context"):
        executor.decode_greedily([row], [3], subject.config.context)
    assert row.length == 4


def test_a_row_twice_and_a_closed_row_are_refused(subject: Subject) -> None:
    prompts, sources = subject.rows((4,))
    executor = subject.executor()
    (row,) = open_all(executor, prompts, sources)
    executor.run([Feed(row, prompts[0])])
    with pytest.raises(ExecutorError, match="twice"):
        executor.decode_greedily([row, row], [3, 4], 2)
    executor.close(row)
    with pytest.raises(ExecutorError, match="closed"):
        executor.decode_greedily([row], [3], 2)


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
    (ids,) = executor.decode_greedily([row], [7], 6).tolist()
    embedding = embedding.clone()
    embedding[ids[2]] = torch.nan
    files.save_file({**tensors, "model.embed_tokens.weight": embedding}, path)
    broken = Subject(folder, name).executor()
    row = broken.open()
    broken.run([Feed(row, [5, 6])])
    first = ids.index(ids[2])  # the token whose embedding is broken, once it is fed
    (marked,) = broken.decode_greedily([row], [7], 6).tolist()
    assert marked == ids[: first + 1] + [NOT_NUMBERS] * (5 - first)
    assert row.length == 8


def test_a_rope_that_follows_the_length_of_a_row_is_left_to_the_loop(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama").folder
    config = json.loads((folder / "config.json").read_text())
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0, "max_position_embeddings": 16}
    (folder / "config.json").write_text(json.dumps({**config, "rope_parameters": rope}))
    assert ahead_decoder(Subject(folder).cpu()) is None
