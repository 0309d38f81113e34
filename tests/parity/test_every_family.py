"""Every family at a glance: the main head on both executors beside the reference. The other tests here look closer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from glassformer.blueprints import blueprint
from glassformer.engine.cpu.executor import CpuReader
from glassformer.model_files import open_model
from glassformer.see.verification import difference
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import Pair, close, ids_for, pair, same_fields

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.every_family]

FLOATS, STATES = 1e-5, 1e-4  # states keep what is rounded at a token
MAIN = {family: heads[1] for family, heads in reference.HEADS.items()}


@pytest.fixture(scope="module", params=reference.FAMILIES)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair(tmp_path_factory.mktemp(request.param), request.param, MAIN[request.param])


@torch.no_grad()
def test_outputs_and_texts_equal_the_references(models: Pair) -> None:
    ids = ids_for(models.theirs, 2, 13)
    inputs = {"decoder_input_ids": ids_for(models.theirs, 2, 9, seed=2)} if models.family in reference.PAIRS else {}
    options = {"output_hidden_states": True, "output_attentions": True}
    expected = reference.as_usual(models.theirs, ids, models.theirs(ids, **inputs, **options))
    same_fields(models.ours(ids, **inputs, **options), expected)
    if models.family in (*reference.DECODERS, *reference.PAIRS):
        texts_and_sites_are_equal(models)


def test_the_blueprint_has_its_weights_and_sites(models: Pair) -> None:
    described = blueprint(models.ours.config, models.head)
    weights = {weight.name: weight.shape for weight in described.weights}
    stored_buffers = [(name, buffer) for name, buffer in models.ours.named_buffers() if name in weights]
    assert weights == {name: tuple(value.shape) for name, value in (*models.ours.named_parameters(), *stored_buffers)}
    inputs = {"decoder_input_ids": torch.tensor([[0, 5]])} if models.family in reference.PAIRS else {}
    assert set(models.ours(torch.tensor([[5, 6, 7]]), **inputs, watch="*").sites) == set(described.sites)


def texts_and_sites_are_equal(models: Pair) -> None:
    """The reference's text, and on both executors the same values at every site."""
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    ids = ids_for(models.theirs, 2, 11)
    expected = models.theirs.generate(
        ids, **options, use_cache=models.family not in reference.PAIRS
    )  # whose stacks differ in depth
    assert models.ours.generate(ids, **options).tolist() == expected.tolist()
    subject = Subject(models.folder)
    subject.model = models.ours
    verdict = subject.verdict(subject.cpu(), (9, 4))
    assert verdict.agrees(STATES if subject.blueprint.state_size else FLOATS), verdict


@torch.no_grad()
@pytest.mark.parametrize("family", reference.ENCODERS)
def test_the_engines_states_equal_the_references(family: str, tmp_path: Path) -> None:
    theirs = reference.write(tmp_path, family, "base")
    opened = open_model(tmp_path)
    rows = [ids_for(theirs, length, seed=length).tolist() for length in (1, 5, 17)]
    for row, states in zip(rows, CpuReader(opened.config, opened.blueprint(), opened.tensors).read(rows), strict=True):
        wanted = theirs(torch.tensor([row])).last_hidden_state
        close(torch.from_numpy(states)[None], wanted)
        assert difference("final", {"final": wanted[0]}, {"final": states}).error <= FLOATS
