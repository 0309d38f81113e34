"""What comes with the package to see inside a model: found by its weights, taken by default, and refused to others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer import GlassError
from glassformer.features.dictionary import FeatureLabel
from glassformer.features.files import read_dictionary, read_labels, write_labels
from glassformer.see.explain.parts import PartSearch
from glassformer.see.lens import Translator, TunedLens
from glassformer.see.patching.pair import TextPair, read_pairs
from glassformer.steering import library
from tests.features.dictionaries import SIZE, write_folder
from tests.see.models import TEXT, both
from tests.see.test_explain import asked

LABELS = [FeatureLabel(f"cat {index}", f"the ⟦cat {index}⟧") for index in range(SIZE)]


def random_lens(model: Any) -> TunedLens:
    generator, hidden = np.random.default_rng(5), model.config.hidden_size
    parts = ((4, hidden), (hidden,), (hidden, 4))
    layers = [*model.read(TEXT).stream][:-1]
    return TunedLens(
        model, {layer: Translator(*(generator.normal(size=part).astype(np.float32) for part in parts)) for layer in layers}
    )


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A model with whose weights a tuned lens and two dictionaries are shipped."""
    made = both("llama").model
    place = tmp_path / "shipped" / "tiny"
    place.mkdir(parents=True)
    random_lens(made).save(place / "lens.safetensors", packed=True)
    for name in ("early", "late"):
        (place / "features").mkdir(exist_ok=True)
        write_labels(write_folder(place / "features" / name), LABELS)
    facts = {"weights": made.weights_digest, "sizes": [made.config.hidden_size, made.blueprint.blocks]}
    (place / "sight.json").write_text(json.dumps({**facts, "default_dictionary": "late"}))
    monkeypatch.setattr(library, "SHIPPED_MODELS", tmp_path / "shipped")
    library._sights.cache_clear()
    yield made
    library._sights.cache_clear()


def test_the_lens_is_taken_where_none_is_named(model: Any) -> None:
    reading = model.read(TEXT)
    assert reading.lens() == reading.lens(tuned=model.load_lens(model.library.shipped_lens))
    assert (reading.lens().tuned, reading.lens(tuned=None).tuned) == (True, False)
    assert model.watch(TEXT, max_new_tokens=2).lens().tuned
    assert reading.lens().final == reading.lens(tuned=None).final


def test_why_reads_the_layers_through_it(model: Any) -> None:
    reading, blocks = model.read(TEXT), range(model.blueprint.blocks)
    pair = TextPair(reading, model.read("the dog sat on the mat"), -1)
    with asked(reading) as question, read_pairs([pair], [f"blocks.{block}.residual" for block in blocks]) as (read,):
        found = PartSearch(question, read).seen_by_lens
        answers = [row[0].id == question.token for row in reading.lens([-1]).predictions[1:]]
        assert found == next((block for block in blocks if all(answers[block:])), None)


def test_features_are_read_by_name_and_by_default_with_their_labels(model: Any) -> None:
    view = model.read(TEXT).features()
    assert view.dictionary == "late"
    first = view.features[0]
    assert (first.label, first.context) == (f"cat {first.feature}", f"the ⟦cat {first.feature}⟧")
    assert f" {first.feature} cat {first.feature} (" in str(view)
    assert [known.name for known in model.feature_dictionaries().dictionaries] == ["early", "late"]
    assert model.dictionary("early").label(3) == "cat 3"
    assert model.steered({"late/3": 2.0}).changes


def test_other_weights_have_the_logit_lens_and_no_dictionary(model: Any) -> None:
    other = both("gpt2").model
    assert not other.read(TEXT).lens().tuned


def test_a_name_of_ones_own_goes_before_a_shipped_one(model: Any, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_folder(own / "late")
    assert model.dictionary("late").labels
    assert not model.with_library(library.Library(features=own)).dictionary("late").labels


@pytest.mark.parametrize("labels", ["{", "{}", "[1]", '[["a"]]', '[["a", 1]]', '[["a", "b"]]'])
def test_labels_that_do_not_fit_are_refused(labels: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "sae")
    (folder / "labels.json").write_text(labels)
    with pytest.raises(GlassError, match=r"labels\.json"):
        read_dictionary(folder)


def test_labels_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_labels(tmp_path, LABELS)
    assert [*read_labels(tmp_path / "labels.json")] == LABELS


def test_what_is_shipped_is_whole() -> None:
    for folder in library._sights():
        facts = library._facts(folder)
        assert (folder / "lens.safetensors").is_file()
        assert sum(path.stat().st_size for path in folder.rglob("*")) < 25_000_000
        for name, measured in facts["dictionaries"].items():
            dictionary = read_dictionary(folder / "features" / name)
            assert (dictionary.site, dictionary.site_out) == (measured["site"], measured["site_out"])
            assert len(dictionary.labels) == dictionary.size
        assert facts["default_dictionary"] in facts["dictionaries"]


def test_the_list_of_a_chats_features_is_of_what_was_said(smollm2: Path) -> None:
    """Neither of the system's words nor of the signs between turns."""
    run = glassformer.load(smollm2).watch("I love Paris", max_new_tokens=3)
    view = run.features()
    assert view.dictionary == "stream-15"
    places = {place for feature in view.features for place in feature.positions}
    written = [*range(len(run.prompt_ids), len(view.tokens))]
    assert places <= {*written, *(at for at, token in enumerate(view.tokens) if token.token in ("I", " love", " Paris"))}
    assert {view.tokens[place].token for place in places} >= {" Paris"}
