"""Sparse autoencoders learn the features that rows were made of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from glassformer.features.files import read_dictionary, write_dictionary
from glassformer.see.activation_rows import TextRows, activation_rows
from glassformer.see.fit_features import FeatureTrainingSettings, train_features
from glassformer.see.schema import schema
from tests.see.models import both

SITE = "blocks.0.residual"
WIDTH, PLANTED, ACTIVE = 24, 32, 3


def planted(count: int = 4000, seed: int = 0) -> tuple[Any, Any]:
    """Directions, and rows that are each a sum of a few of them, around a mean."""
    generator = np.random.default_rng(seed)
    directions = generator.normal(size=(PLANTED, WIDTH))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    strengths = np.zeros((count, PLANTED))
    for row in strengths:
        row[generator.choice(PLANTED, ACTIVE, replace=False)] = generator.uniform(1, 2, ACTIVE)
    return directions, (40 * (strengths @ directions) + 15).astype(np.float32)


@pytest.mark.parametrize("kind", ["topk", "batchtopk", "l1"])
def test_planted_features_are_found(kind: Any, tmp_path: Path) -> None:
    directions, rows = planted()
    sparsity: Any = {"kind": kind, "k": ACTIVE, "l1": 2.0}
    settings = FeatureTrainingSettings(features=64, steps=500, batch_size=128, learning_rate=5e-3, **sparsity)
    dictionary, view = train_features([rows], settings, site="blocks.0.residual", model="tiny")
    cosines = directions @ dictionary.decoder.T
    assert np.mean(cosines.max(axis=1) > 0.9) > 0.9  # of the planted ones
    np.testing.assert_allclose(np.linalg.norm(dictionary.decoder, axis=1), 1, atol=1e-5)
    _, unseen = planted(500, seed=0)
    activations = dictionary.encode(unseen)
    errors = unseen - dictionary.decode(activations, unseen)
    explained = 1 - (errors**2).sum() / ((unseen - unseen.mean(0)) ** 2).sum()
    assert explained > (0.7 if kind == "l1" else 0.9)
    last = view.points[-1]
    assert 1 - last.unexplained == pytest.approx(explained, abs=0.05)
    assert last.active == pytest.approx((activations > 0).sum(1).mean(), rel=0.2)
    assert len(view.points) == 50
    assert view.points[0].loss > last.loss
    again = read_dictionary(write_dictionary(dictionary, tmp_path / "sae"))
    np.testing.assert_array_equal(again.encode(unseen[:5]), dictionary.encode(unseen[:5]))
    jsonschema.validate(json.loads(view.save(tmp_path / "view.json").read_text("utf-8")), schema(type(view)))
    assert "of the variance" in " ".join(str(view).split())


@pytest.mark.parametrize("kind", ["topk", "batchtopk"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_transcoder_finds_what_makes_what(kind: Any, packed: bool, tmp_path: Path) -> None:
    """Rows of two sites, of different sizes and widths: each planted feature reads a direction and writes another."""
    directions, inputs = planted()
    written = np.random.default_rng(5).normal(size=(PLANTED, WIDTH - 8))
    written /= np.linalg.norm(written, axis=1, keepdims=True)
    strengths = np.linalg.lstsq(directions.T, (inputs - 15).T / 40, rcond=None)[0].T  # exact: as many rows as it takes
    outputs = np.maximum(strengths, 0) @ written * 3 + 1
    rows = np.concatenate([inputs, outputs], axis=1).astype(np.float32)
    settings = FeatureTrainingSettings(features=128, kind=kind, k=8, steps=600, batch_size=128, learning_rate=5e-3)
    dictionary, view = train_features(
        [rows], settings, site="blocks.0.mlp.input", site_out="blocks.0.mlp.update", predicted=WIDTH - 8
    )
    assert dictionary.is_transcoder
    assert (dictionary.encoder.shape, dictionary.decoder.shape) == ((WIDTH, 128), (128, WIDTH - 8))
    predicted = dictionary.decode(dictionary.encode(rows[:, :WIDTH]), rows[:, :WIDTH])
    explained = 1 - ((outputs - predicted) ** 2).sum() / ((outputs - outputs.mean(0)) ** 2).sum()
    assert explained > 0.8
    assert 1 - view.points[-1].unexplained == pytest.approx(explained, abs=0.05)
    np.testing.assert_allclose(np.linalg.norm(dictionary.decoder, axis=1), 1, atol=1e-5)
    again = read_dictionary(write_dictionary(dictionary, tmp_path / "transcoder", packed=packed))
    assert (again.site, again.site_out, again.subtracts_bias) == (dictionary.site, dictionary.site_out, False)
    if packed:
        error = again.decode(again.encode(rows[:, :WIDTH]), rows[:, :WIDTH]) - predicted
        assert (error**2).mean() < 0.02 * outputs.var()
    else:
        np.testing.assert_array_equal(again.encode(rows[:5, :WIDTH]), dictionary.encode(rows[:5, :WIDTH]))


@pytest.mark.parametrize("family", ["gemma2", "gpt2", "gpt_oss"])
def test_a_transcoder_of_a_models_mlp(family: str, tmp_path: Path) -> None:
    model = both(family).model
    text = "the cat sat on the mat. a dog ran. " * 12
    reads, writes = "blocks.0.mlp.input", "blocks.0.mlp.update"
    rows = activation_rows(model, text, reads, length=16, site_out=writes)
    first = next(iter(rows))
    np.testing.assert_array_equal(first, np.concatenate([next(iter(activation_rows(model, text, site, length=16)))
                                                         for site in (reads, writes)], axis=1))  # fmt: skip
    dictionary, _ = model.train_features(text, reads, writes, features=64, k=4, steps=80, batch_size=64, length=16)
    again = model.dictionary(write_dictionary(dictionary, tmp_path / "transcoder"))
    assert (again.site, again.site_out) == (reads, writes)
    for name in ("encoder", "encoder_bias", "decoder", "decoder_bias"):
        np.testing.assert_array_equal(getattr(again, name), getattr(dictionary, name))
    seen = model.read("the cat sat").features(again)
    assert (seen.site_out, seen.reconstruction.active) == (writes, 4)


def test_dead_features_are_counted_and_revived() -> None:
    """With more features than rows need, some are dead at first, and begin anew."""
    _, rows = planted(1000)
    settings = FeatureTrainingSettings(features=256, k=2, steps=200, batch_size=64, learning_rate=1e-3)
    _, view = train_features([rows], settings)
    assert max(point.dead for point in view.points) > 0
    assert sum(point.revived for point in view.points) > 0
    assert all(point.revived == 0 for point in view.points if point.step > 160)


def test_a_seed_gives_the_same_features() -> None:
    _, rows = planted(1000)
    settings = FeatureTrainingSettings(features=32, k=3, steps=60, batch_size=64, buffer=256, seed=4)
    parts = [rows[at : at + 77] for at in range(0, len(rows), 77)]
    first, second = (train_features(stream, settings)[0] for stream in (parts, [rows]))
    np.testing.assert_array_equal(first.decoder, second.decoder)  # however the rows come
    once: Iterator[Any] = iter(parts)  # which cannot be read again
    assert train_features(once, settings)[0].decoder.shape == (32, WIDTH)


def test_straight_from_a_model(tmp_path: Path) -> None:
    model = both("llama", "cpu").model
    rows = activation_rows(model, "the cat sat on the mat. a dog ran. " * 12, "blocks.0.residual", length=16)
    assert isinstance(rows, TextRows)
    assert activation_rows(model, "the cat", "blocks.0.hook_resid_post").site == rows.site
    for part, window in zip(rows, rows.windows(), strict=True):
        assert part.shape == (len(window) - 1, rows.width)
        np.testing.assert_allclose(part, model.read_ids(window).at("blocks.0.residual")[1:], atol=1e-5)
    settings = FeatureTrainingSettings(features=64, k=4, steps=80, batch_size=64)
    dictionary, view = train_features(rows, settings, site=rows.site, model=model.name, name="cats")
    seen = model.read("the cat sat").features(dictionary)
    assert seen.dictionary == "cats"
    assert view.points[-1].unexplained < 0.9


@pytest.mark.parametrize("buffer", [65_536, 300], ids=["all at once", "refilled"])
def test_no_more_is_read_than_the_steps_need(buffer: int) -> None:
    """Of a stream without end."""
    read = 0

    def stream() -> Iterator[Any]:
        nonlocal read
        generator = np.random.default_rng(0)
        while True:
            read += 10
            yield generator.normal(size=(10, 4)).astype(np.float32)

    told: list[Any] = []
    settings = FeatureTrainingSettings(features=8, k=2, steps=20, batch_size=50, buffer=buffer)
    _, view = train_features(stream(), settings, progress=lambda *news: told.append(news))
    assert view.points[-1].rows == 20 * 50
    batches = 20 + 15  # revivals take some too
    assert 20 * 50 < read <= batches * 50 * 10 / 9 + 10
    assert told[-20:] == [("training", step, 20) for step in range(1, 21)]
    total = told[0][-1]
    assert told[:-20] == [("reading activations", min(done, total), total) for done in range(10, total + 10, 10)]


def test_a_text_is_encoded_as_far_as_it_is_read() -> None:
    model, given = both("llama", "cpu").model, 0

    class Pieces:
        def __iter__(self) -> Iterator[str]:
            nonlocal given
            for _ in range(10_000):
                given += 1
                yield "the cat sat on the mat. a dog ran. "

    dictionary, view = model.train_features(Pieces(), SITE, features=32, k=4, steps=3, batch_size=16, length=8, name="cats")
    assert (dictionary.name, dictionary.site, dictionary.model) == ("cats", SITE, model.name)
    assert view.points[-1].rows == 48
    assert given < 40
    whole, _ = model.train_features("the cat sat on the mat. a dog ran. " * 40, SITE, features=32, k=4, steps=3,
                                    batch_size=16, length=8)  # fmt: skip
    np.testing.assert_allclose(whole.decoder, dictionary.decoder, atol=1e-4)


def test_recorded_activations_give_the_same_rows(tmp_path: Path) -> None:
    model = both("llama", "cpu").model
    texts = [f"the cat sat on {number} mats" for number in range(40)]
    recorded = model.read_many(texts).record(SITE, "blocks.0.attention.heads", folder=tmp_path / "acts")
    for site in recorded.sites:
        rows = activation_rows(model, recorded, site)
        expected = [text.values(site).reshape(len(text.ids), -1)[1:] for text in recorded]
        np.testing.assert_array_equal(np.concatenate(list(rows)), np.concatenate(expected))
        assert rows.width == expected[0].shape[1]
    dictionary, _ = model.train_features(recorded, SITE, features=32, k=4, steps=10, batch_size=16)
    direct, _ = train_features([np.concatenate(list(activation_rows(model, recorded, SITE)))],
                               FeatureTrainingSettings(features=32, k=4, steps=10, batch_size=16))  # fmt: skip
    np.testing.assert_array_equal(dictionary.decoder, direct.decoder)
    last = model.read_many(texts).record(SITE, folder=tmp_path / "last", positions="last")
    assert len(np.concatenate(list(activation_rows(model, last, SITE)))) == len(texts)
