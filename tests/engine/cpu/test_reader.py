"""The CPU engine over encoders: the states of texts, beside the PyTorch model's own."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.engine.cpu import executor as reader
from glassformer.engine.cpu.executor import CpuReader
from glassformer.engine.cpu.library import Engine, levels
from glassformer.engine.protocol import ACTIVATIONS
from glassformer.ground.errors import InputError
from glassformer.model_files import open_model
from glassformer.quantize import requantize
from glassformer.see.verification import difference
from tests.parity import reference
from tests.parity.compare import load
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = (1, 5, 17, 3)


def opened(folder: Path, **engine: Any) -> CpuReader:
    model = open_model(folder)
    return CpuReader(model.config, model.blueprint(), model.tensors, engine=Engine(**engine))


def texts(vocabulary: int, lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    draw = random.Random(1)
    return [[draw.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    reference.write(folder, "bert", "base")
    return folder


@torch.no_grad()
@pytest.mark.parametrize("seed", [0, 1, *swept(range(2, 10))])
@pytest.mark.parametrize("head", ["base", "masked", "sequence"])
@pytest.mark.parametrize("family", reference.ENCODERS)
def test_states_match_every_family(family: str, head: str, seed: int, tmp_path: Path) -> None:
    """Whatever head it has is left out."""
    reference.write(tmp_path, family, head, **reference.random_changes(family, seed))
    model = load(tmp_path, "base")
    for level in levels() if head == "base" else levels()[:1]:
        rows = texts(model.config.vocab_size)
        for ids, states in zip(rows, opened(tmp_path, level=level, threads=2).read(rows), strict=True):
            wanted = model(torch.tensor([ids])).last_hidden_state[0]
            assert difference("final", {"final": wanted}, {"final": states}).error <= 1e-5


def test_coarser_activations(tmp_path: Path) -> None:
    reference.write(tmp_path, "bert", "base", hidden_size=64, intermediate_size=96)
    model = open_model(tmp_path)
    tensors = replace(model, replacement_tensors=requantize(model, "q8_0")).tensors
    rows = texts(model.config.vocab_size)
    fine, *coarser = (
        CpuReader(model.config, model.blueprint(), tensors, activations=activations).read(rows)
        for activations in ACTIVATIONS
    )
    for coarse in coarser:
        for one, other in zip(fine, coarse, strict=True):
            assert 1e-4 < difference("final", {"final": one}, {"final": other}).error < 7e-2


@torch.no_grad()
def test_token_types(bert: Path) -> None:
    model, rows = load(bert, "base"), texts(150)
    types = [[int(at > len(ids) // 2) for at in range(len(ids))] for ids in rows]
    for ids, kinds, states in zip(rows, types, opened(bert).read(rows, types), strict=True):
        wanted = model(torch.tensor([ids]), token_type_ids=torch.tensor([kinds])).last_hidden_state[0]
        assert difference("final", {"final": wanted}, {"final": states}).error <= 1e-5


def test_batch_invariance(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, rows = opened(bert, threads=2), texts(150, (9, 1, 33, 2, 64, 17, 3, 5))
    together = one.read(rows)
    monkeypatch.setattr(reader, "MAX_TOKENS", 20)
    for other in (one.read(rows), [one.read([ids])[0] for ids in rows], opened(bert, threads=4).read(rows)):
        assert all(np.array_equal(mine, yours) for mine, yours in zip(together, other, strict=True))


def test_read_of_no_rows(bert: Path) -> None:
    assert opened(bert).read([]) == []


@pytest.mark.parametrize(
    ("rows", "types", "message"),
    [
        ([[5], []], None, "a text has no tokens. Give at least one"),
        ([[5] * 65], None, "65 tokens do not fit into the model's context of 64. Shorten the text"),
        ([[5, 150]], None, "token id 150 is outside the vocabulary of 150"),
        ([[5, 6]], [[0]], "token types are one number below 2 for each of a text's 2 tokens"),
        ([[5, 6]], [[0, 2]], "token types are one number below 2"),
        ([[5, 6]], [[0, -1]], "token types are one number below 2"),
    ],
)
def test_unreadable_rows_are_refused(rows: Any, types: Any, message: str, bert: Path) -> None:
    with pytest.raises(InputError, match=message):
        opened(bert).read(rows, types)
    assert len(opened(bert).read([[5] * 64])[0]) == 64
