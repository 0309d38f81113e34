"""The tuned lens: the logit lens before training, nearer to the model's own predictions after it, and safe to load."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from glassformer.ground.errors import InputError
from glassformer.see import fit_lens
from glassformer.see.fit_lens import _ridge, _Unembedding
from glassformer.see.lens import FORMAT, LensTraining, Translator, TunedLens
from glassformer.see.schema import schema
from glassformer.see.tensor_files import load_tensors, save_tensors
from tests.see.models import TEXT, both, encoder

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "rat", "ate", "the", "hat", "of", "a", "dog"]
TEXTS = [" ".join(WORDS[number % 7 : number % 7 + 4 + number % 5]) for number in range(30)]


def zero_lens(model: Any) -> TunedLens:
    hidden = model.config.hidden_size
    layers = [*model.read(TEXT).stream][:-1]
    return TunedLens(
        model, {name: Translator(np.zeros((hidden, hidden), np.float32), np.zeros(hidden, np.float32)) for name in layers}
    )


@pytest.mark.parametrize(
    ("family", "executor"), [("gpt2", "plain"), ("llama", "cpu"), ("gemma3_text", "plain"), ("bert", "")]
)
def test_training_brings_predictions_nearer(family: str, executor: str, tmp_path: Path) -> None:
    model = both(family, executor).model if executor else encoder(family).model
    trained = model.read_many(TEXTS).train_lens(steps=30)
    view = trained.view
    jsonschema.validate(json.loads(json.dumps(view.to_dict())), schema(LensTraining))
    assert [layer.layer for layer in view.layers] == [*model.read(TEXT).stream][:-1]
    assert all(layer.after < layer.before for layer in view.layers)
    assert "tuned lens" in str(view)
    reading = model.read(TEXT)
    loaded = model.load_lens(trained.save(tmp_path / "lens.safetensors"))
    logit, tuned, again = reading.lens(), reading.lens(tuned=trained), reading.lens(tuned=loaded)
    assert tuned == again
    assert tuned.final == logit.final, "the last layer needs no map"
    assert (logit.tuned, tuned.tuned) == (False, True)
    assert "tuned lens, what" in str(tuned)
    first = [sum(cell.divergence for cell in view.predictions[0]) for view in (logit, tuned)]
    assert first[1] < first[0]


def test_an_untrained_lens_is_the_logit_lens() -> None:
    reading = both("llama", "cpu").model.read(TEXT)
    assert reading.lens(tuned=zero_lens(reading.model)).predictions == reading.lens().predictions


def test_divergences_are_those_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out divergences by hand: the reference's hidden states through its own norm and head, and torch's KL."""
    monkeypatch.setattr(fit_lens, "CHOOSING", 0)  # so that all of them are measured on
    pair = both("llama", "cpu")
    view = pair.model.read_many(TEXTS).train_lens(steps=0).view
    total = torch.zeros(len(view.layers))
    count = 0
    for text in TEXTS[fit_lens.HELD_OUT - 1 :: fit_lens.HELD_OUT]:
        states = pair.run(pair.model.read(text)).hidden_states
        ids = torch.tensor([pair.model.read(text).ids])
        with torch.no_grad():
            last = pair.reference(ids).logits[0].log_softmax(-1)
            for number, state in enumerate(states[:-1]):
                own = pair.unembedded(state)[0].log_softmax(-1)
                total[number] += torch.nn.functional.kl_div(own, last, reduction="sum", log_target=True)
        count += ids.shape[1]
    assert count == view.held_out
    assert [layer.before for layer in view.layers] == pytest.approx((total / count / math.log(2)).tolist(), rel=1e-2)


def test_training_that_makes_a_layer_worse_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_lens, "CHOOSING", 0)
    many = both("llama", "cpu").model.read_many(TEXTS)
    started = many.train_lens(steps=0).view
    monkeypatch.setattr(fit_lens, "RATE", 1.0)
    assert [layer.after for layer in many.train_lens(steps=3).view.layers] == [layer.after for layer in started.layers]
    assert all(layer.after <= layer.before for layer in started.layers)


def test_ridge_regression_finds_an_affine_map() -> None:
    random = np.random.default_rng(0)
    own = torch.from_numpy(random.normal(size=(400, 6)) + 3)
    weight, bias = torch.from_numpy(random.normal(size=(6, 6))), torch.from_numpy(random.normal(size=6))
    ones = torch.ones(400, dtype=torch.float64)
    fitted, found = _ridge(own, own @ weight.T + bias, ones, None)
    np.testing.assert_allclose(found, weight, atol=0.1)
    np.testing.assert_allclose(own.float() @ found.T + fitted, own @ weight.T + bias, atol=0.3)
    low = torch.outer(weight[0], weight[1])  # of rank 1, and so found in full by two factors
    fitted, down, up = _ridge(own, own @ low.T + bias, ones, 1)
    assert (down.shape, up.shape) == ((1, 6), (6, 1))
    np.testing.assert_allclose(up @ down, low, atol=0.1 * float(low.abs().max()) + 0.05)


@pytest.mark.parametrize(("family", "packed"), [("gemma2", False), ("gpt2", True)])
def test_a_lens_of_a_low_rank_is_kept_as_it_is(family: str, packed: bool, tmp_path: Path) -> None:
    model = both(family).model
    trained = model.read_many(TEXTS).train_lens(steps=3, rank=2)
    assert all(each.weight.shape[0] == 2 and each.up.shape[1] == 2 for each in trained.translators.values())
    loaded = model.load_lens(trained.save(tmp_path / "lens.safetensors", packed=packed))
    reading = model.read(TEXT)
    if not packed:
        assert reading.lens(tuned=loaded) == reading.lens(tuned=trained)
    for layer, each in trained.translators.items():
        for name, array in each.arrays().items():
            bound = float(np.abs(array).max()) / 254 if packed and array.ndim == 2 else 0.0  # half of a step of 8 bits
            np.testing.assert_allclose(loaded.translators[layer].arrays()[name], array, rtol=1e-6, atol=bound)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bert"])
def test_some_tokens_scores_are_those_among_all(family: str) -> None:
    model = encoder(family).model if family == "bert" else both(family).model
    head = _Unembedding(model)
    states, tokens = torch.randn(3, model.config.hidden_size), torch.tensor([5, 1, 7])
    assert head.can_select
    with torch.no_grad():
        torch.testing.assert_close(head(states, tokens), head(states)[:, tokens])


def test_a_sampled_vocabulary_trains_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_lens, "SAMPLED", 16)
    monkeypatch.setattr(fit_lens, "LIKELIEST", 4)
    view = both("gpt2").model.read_many(TEXTS).train_lens(steps=30).view
    assert sum(layer.after for layer in view.layers) < sum(layer.before for layer in view.layers)


def test_bad_requests_have_one_clear_error(tmp_path: Path) -> None:
    model = both("gpt2").model
    lens = zero_lens(model)
    with pytest.raises(InputError, match="end in .safetensors"):
        lens.save(tmp_path / "lens.bin")
    path = lens.save(tmp_path / "lens.safetensors")
    with pytest.raises(InputError, match="other weights"):
        both("llama").model.load_lens(path)
    arrays, metadata = load_tensors(path, FORMAT, model)
    save_tensors(path, {name: array for name, array in arrays.items() if name != "0.bias"}, metadata)
    with pytest.raises(InputError, match="does not have a map for each layer"):
        model.load_lens(path)
