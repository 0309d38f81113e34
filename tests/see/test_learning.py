"""A text under the snapshots of a training: each number is the reference's, and one model is held at a time."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import glassformer
from glassformer.ground.errors import InputError
from glassformer.see import learning as module
from glassformer.see.learning import learning
from glassformer.see.schema import schema
from tests.see.models import both
from tests.training.folders import training_folder

pytestmark = pytest.mark.usefixtures("one_thread")
TEXT = "the cat sat"


def reader(text: str = TEXT, target: str | None = None, executor: str = "plain") -> Any:
    return lambda path: glassformer.load(path, executor=executor).read(text, target, raw=True)


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_losses_candidates_layers_and_attention_are_the_reference_s(tmp_path: Path, executor: str) -> None:
    view = learning(training_folder(tmp_path, [], ("gpt2",)), reader(executor=executor), position=4, layer=1, head=1)
    model = both("gpt2")
    reading = model.reading(TEXT)
    output = model.run(reading)
    logs = output.logits[0].log_softmax(-1)
    (snapshot,) = view.snapshots
    ids = torch.tensor(reading.ids)
    losses = torch.nn.functional.cross_entropy(output.logits[0, :-1], ids[1:], reduction="none")
    assert view.tokens == reading.texts
    assert snapshot.losses[0] is None
    assert snapshot.losses[1:] == pytest.approx(losses.tolist(), rel=1e-3)
    assert snapshot.loss == pytest.approx(float(losses.mean()), rel=1e-3)
    for at, candidates in enumerate(snapshot.candidates):
        best = logs[at].topk(5)
        assert [candidate.id for candidate in candidates] == best.indices.tolist()
        assert [candidate.probability for candidate in candidates] == pytest.approx(best.values.exp().tolist(), rel=1e-3)
    assert view.layers == ("embedding", "0", "1", "2")
    for guess, states in zip(snapshot.layers[:-1], output.hidden_states[:-1], strict=True):
        expected = model.unembedded(states[0, 4]).softmax(-1).max(-1)
        assert (guess.id, guess.probability) == (int(expected.indices), pytest.approx(float(expected.values), rel=1e-3))
    assert snapshot.layers[-1].id == snapshot.candidates[4][0].id
    torch.testing.assert_close(torch.tensor(snapshot.attention), output.attentions[1][0, 1], atol=1e-4, rtol=1e-3)


def test_an_encoder_decoder_is_asked_about_its_target(tmp_path: Path) -> None:
    view = learning(training_folder(tmp_path, [], ("t5", "t5")), reader(target="a dog sat"))
    model = both("t5")
    output = model.run(model.reading(TEXT, "a dog sat"))
    assert view.steps == (0, 10)
    assert view.snapshots[0].losses == view.snapshots[1].losses
    assert view.snapshots[1].candidates[-1][0].id == int(output.logits[0, -1].argmax())
    jsonschema.validate(view.to_dict(), schema(type(view)))


def test_one_model_is_held_at_a_time(tmp_path: Path) -> None:
    models: list[weakref.ref[Any]] = []
    alive = []

    def read(path: Path) -> Any:
        alive.append(sum(model() is not None for model in models))
        model = glassformer.load(path)
        models.append(weakref.ref(model))
        return model.read(TEXT, raw=True)

    done: list[tuple[int, int]] = []
    learning(training_folder(tmp_path, [], ("gpt2",) * 3), read, progress=lambda *numbers: done.append(numbers))
    assert alive == [0, 0, 0]
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_a_page_names_steps_tokens_and_numbers(tmp_path: Path) -> None:
    view = learning(training_folder(tmp_path / "book", [], ("gpt2", "gpt2")), reader(), position="c")
    html = view.save(tmp_path / "learning.html").read_text("utf-8")
    assert "book: a text as the model learns" in html
    assert f"{view.snapshots[1].losses[3]:.2f}" in html
    assert f"expected after {view.tokens[view.position]} (position {view.position})" in html
    assert html.count("data:image/png") == 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"text": "the " * 40}, "160 tokens"),
        ({"layer": 3}, "layer 3"),
        ({"head": -9}, "head -9"),
        ({"position": 99}, "token 99"),
    ],
    ids=["length", "layer", "head", "position"],
)
def test_what_cannot_be_shown_is_refused(tmp_path: Path, call: dict[str, Any], message: str) -> None:
    folder = training_folder(tmp_path, [], ("gpt2",))
    read = reader(call.pop("text", TEXT))
    with pytest.raises(InputError, match=message):
        learning(folder, read, **call)


def test_of_very_many_snapshots_some_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SNAPSHOTS", 3)
    assert learning(training_folder(tmp_path, [], ("gpt2",) * 8), reader("a")).steps == (0, 30, 70)
