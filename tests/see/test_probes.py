"""Linear probes: a solver that finds the minimum, a split and a control that are honest, and directions that act."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, SiteError
from glassformer.see.probes import FORMAT, Probes, fit_probe, split
from glassformer.see.schema import schema
from glassformer.see.tensor_files import load_tensors, save_tensors
from tests.see.models import both, encoder

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ["cat", "dog", "rat", "mat", "hat", "sat", "on", "the"]
TEXTS = [f"{'the' if number % 2 else 'a'} {WORDS[number % 7]} {WORDS[number % 5]}" for number in range(40)]
LABELS = ["the" if text.startswith("the") else "a" for text in TEXTS]


def test_the_solver_finds_the_minimum() -> None:
    """Where the gradient of the objective vanishes, computed here by hand."""
    random = np.random.default_rng(0)
    vectors = (random.normal(size=(60, 5)) * [1, 3, 0.1, 1, 1] + [0, 10, 0, 0, 5]).astype(np.float32)
    classes = random.integers(0, 3, 60)
    vectors[classes == 1, 0] += 2
    probe = fit_probe(vectors, classes, 3, penalty=0.5)
    mean, deviation = vectors.astype(np.float64).mean(0), vectors.astype(np.float64).std(0)
    scores = probe.scores(vectors).astype(np.float64)
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    errors = shares - np.eye(3)[classes]
    gradient = errors.T @ ((vectors - mean) / deviation) + 0.5 * probe.weight * deviation
    assert np.abs(gradient).max() < 1e-3
    assert np.abs(errors.sum(0)).max() < 1e-3
    assert probe.accuracy(vectors, classes) > 0.5


@pytest.mark.parametrize(("right", "count"), [(4, 4), (0, 4), (11, 12), (50, 100), (1, 1)])
def test_the_interval_is_wilsons(right: int, count: int) -> None:
    """Its ends are the accuracies that would lie 1.96 of their own standard errors from the measured one."""
    view = Probes("tiny", "last", (), 1, count, 0.5, ())
    measured = right / count
    low, high = view.interval(measured)
    assert 0 <= low < high <= 1
    for end in (low, high):
        assert abs(measured - end) == pytest.approx(1.96 * math.sqrt(end * (1 - end) / count), abs=1e-4)
    if right == count == 4:
        assert (low, high) == pytest.approx((0.5101, 1.0), abs=1e-4)


def test_each_label_is_held_out_in_the_same_share() -> None:
    classes = np.array([0] * 20 + [1] * 4 + [2] * 2)
    train, test = split(classes, 0.25, seed=3)
    assert sorted([*train, *test]) == list(range(26))
    assert np.bincount(classes[test]).tolist() == [5, 1, 1]
    assert split(classes, 0.25, seed=3)[1].tolist() == test.tolist() != split(classes, 0.25, seed=4)[1].tolist()


@pytest.mark.parametrize(
    ("model", "site"),
    [
        (lambda: both("llama", "cpu").model, "blocks.1.residual"),
        (lambda: both("gpt2").model, "blocks.1.residual"),
        (lambda: both("t5", "cpu").model, "encoder.blocks.1.residual"),
        (lambda: encoder().model, "blocks.1.residual"),
    ],
)
def test_what_stands_in_the_text_is_found(model: Any, site: str, tmp_path: Path) -> None:
    probes = model().read_many(TEXTS).probe(LABELS, position="mean")
    view = probes.view
    assert site in probes.probes
    assert (view.train, view.held_out, view.baseline) == (30, 10, 0.5)
    assert view.best.accuracy == 1.0
    assert view.best.control < 0.9
    jsonschema.validate(json.loads(json.dumps(view.to_dict())), schema(Probes))
    assert "held out" in str(view)
    loaded = model().load_probes(probes.save(tmp_path / "probes.safetensors"))
    assert np.array_equal(loaded.direction(site), probes.direction(site))
    assert loaded.predict(["the cat sat", "a cat sat"], view.best.site) == ["the", "a"]


def test_vectors_are_the_references() -> None:
    """The mean and the last of the reference's hidden states."""
    from glassformer.see.probes import text_vectors

    pair = both("llama", "cpu")
    for position, pool in (("mean", lambda states: states.mean(0)), ("last", lambda states: states[-1])):
        vectors = text_vectors(pair.model, TEXTS[:3], ["blocks.0.residual"], position)["blocks.0.residual"]
        for text, vector in zip(TEXTS, vectors, strict=False):
            ids = torch.tensor([pair.model.tokenizer(text)["input_ids"]])
            with torch.no_grad():
                states = pair.reference(ids, output_hidden_states=True).hidden_states[1][0]
            np.testing.assert_allclose(vector, pool(states).numpy(), rtol=1e-3, atol=1e-4)


def test_a_direction_is_a_change() -> None:
    model = both("llama", "cpu").model
    probes = model.read_many(TEXTS).probe(LABELS, "blocks.0.residual", position="mean")
    direction = probes.direction("blocks.0.residual")
    assert np.linalg.norm(direction) == pytest.approx(1, abs=1e-5)
    assert np.allclose(direction, -probes.direction("blocks.0.residual", "a"))
    erased = model.changed({"blocks.0.residual": Change(away_from=direction)}).read(TEXTS[0]).at("blocks.0.residual")
    assert np.abs(erased @ direction).max() < 1e-4
    with pytest.raises(SiteError, match="probe of 'blocks.1.residual'"):
        probes.direction("blocks.1.residual")
    with pytest.raises(SiteError, match="probe of 'blocks.1.residual'"):
        probes.predict(TEXTS, "blocks.1.residual")


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    model, path = both("gpt2").model, tmp_path / "probes.safetensors"
    probes = model.read_many(TEXTS).probe(LABELS, "embedding")
    probes.save(path)
    arrays, metadata = load_tensors(path, FORMAT, model)
    weight = arrays["embedding.weight"]
    for change, data, message in (
        ({}, {"labels": '["a"]'}, "damaged"),
        ({}, {"labels": "["}, "damaged"),
        ({"embedding.weight": weight[:, 1:]}, {}, "damaged"),
        ({"embedding.weight": np.full_like(weight, np.nan)}, {}, "values that are no numbers"),
        ({"embedding.weight": weight.astype(np.int64)}, {}, "is of I64, and not of F32"),
        ({}, {"format": "other"}, "not a linear probe file of this version"),
    ):
        save_tensors(path, {**arrays, **change}, {**metadata, **data})
        with pytest.raises(InputError, match=message):
            model.load_probes(path)
    with pytest.raises(InputError, match="cannot be written"):
        probes.save("\ud800.safetensors")
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match="damaged or cut short"):
        model.load_probes(path)
