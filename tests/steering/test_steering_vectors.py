"""Steering vectors against the same made and added by hand in the reference, and the files that hold them."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from glassformer import Change, GlassError
from glassformer.steering.library import Library
from glassformer.steering.vector import SteeringVector, read_vector
from tests.see.models import EXECUTORS, both, encoder

PAIRS = [("the cat sat", "a dog ran"), ("the mat sat on", "a mat ran on"), ("the cat", "a cat")]
SITE = "blocks.1.residual"


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("tokens", ["last", "all"])
def test_the_mean_difference_is_the_references(family: str, executor: str, tokens: str) -> None:
    pair = both(family, executor)
    made = pair.model.steering(PAIRS, "blocks.0.residual", tokens=tokens)
    expected = []
    for texts in PAIRS:
        states = [pair.run(pair.model.read(text)).hidden_states[1][0] for text in texts]
        first, second = (each[-1] if tokens == "last" or len(each) == 1 else each[1:].mean(0) for each in states)
        expected.append(first - second)
    direction = torch.stack(expected).mean(0).numpy()
    np.testing.assert_allclose(made.vector.directions["blocks.0.residual"], direction, atol=2e-4)
    assert made.directions[0].norm == pytest.approx(np.linalg.norm(direction), abs=1e-3)
    along = np.stack([difference.numpy() for difference in expected]) @ direction / (direction @ direction)
    assert [pair.projections[0] for pair in made.pairs] == pytest.approx(along.tolist(), abs=1e-3)


def test_pairs_are_shown_as_they_were_given_without_the_chat_template() -> None:
    model = both("llama").model
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = "the cat sat on {{ messages[0].content }} on the mat"
    ids = tuple(tokenizer.encode("a cat", add_special_tokens=False))
    message = [{"role": "user", "content": "the cat"}]
    made = model.with_tokenizer(tokenizer).steering([("the cat", "a dog"), (message, ids)], SITE, tokens="all")
    assert [(pair.positive, pair.negative) for pair in made.pairs] == [("the cat", "a dog"), ("the cat", "a cat")]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_steered_model_is_the_reference_with_a_hook(executor: str) -> None:
    pair = both("llama", executor)
    made = pair.model.steering(PAIRS, "blocks.0.residual")
    vector = torch.from_numpy(made.vector.directions["blocks.0.residual"])
    reading = pair.model.steered({made: 2.5}).read("the cat sat on")

    def add(module: Any, arguments: Any, output: Any) -> Any:
        return (output[0] + 2.5 * vector, *output[1:]) if isinstance(output, tuple) else output + 2.5 * vector

    hook = pair.reference.model.layers[0].register_forward_hook(add)
    try:
        expected = pair.run(reading).logits[0].numpy()
    finally:
        hook.remove()
    np.testing.assert_allclose(reading.at("scores"), expected, atol=2e-3)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("family", "site"),
    [("llama", "blocks.1.attention.heads"), ("llama", "blocks.0.mlp.hidden"), ("t5", "encoder.blocks.0.residual"),
     ("bart", "blocks.1.residual"), ("gemma3_text", "embedding")],
)  # fmt: skip
def test_any_site_that_has_numbers_for_each_token(family: str, site: str, executor: str) -> None:
    model = both(family, executor).model
    made = model.steering(PAIRS, site)
    direction = made.vector.directions[site]
    before = both(family, executor).reading().at(site)
    steered = model.steered({made: 3.0})
    after = steered.read("the cat sat on the mat", "a dog sat") if model.decoder_start_token is not None else steered.read(
        "the cat sat on the mat"
    )  # fmt: skip
    axis = 1 if direction.ndim > 1 else 0
    np.testing.assert_array_equal(after.at(site), before + np.expand_dims(np.float32(3.0) * direction, axis))


def test_an_encoder_is_steered_too() -> None:
    model = encoder("bert").model
    made = model.steering(PAIRS, "blocks.0.residual", tokens="all")
    scores = [each.read("the cat").at("scores") for each in (model, model.steered({made: 5.0}))]
    assert np.abs(scores[0] - scores[1]).max() > 1e-3


def test_the_principal_component_of_planted_differences() -> None:
    """Of differences that share one direction, the component is that direction, as long as the mean along it."""
    from glassformer.see.steering import _direction

    generator = np.random.default_rng(0)
    planted = generator.normal(size=16).astype(np.float32)
    differences = (planted * generator.uniform(0.5, 1.5, (40, 1)) + 0.01 * generator.normal(size=(40, 16))).astype(
        np.float32
    )
    component, mean = _direction(differences, "pca"), differences.mean(0)
    assert component @ planted / np.linalg.norm(component) / np.linalg.norm(planted) == pytest.approx(1, abs=1e-3)
    assert component @ component == pytest.approx(component @ mean, rel=1e-4)


def test_held_out_agreement_is_that_of_leaving_each_pair_out() -> None:
    from glassformer.see.steering import _held_out

    differences = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
    slow = [np.delete(differences, n, axis=0).mean(0) @ differences[n] > 0 for n in range(9)]
    assert _held_out(differences, "mean") == pytest.approx(np.mean(slow))
    assert _held_out(differences[:1], "mean") is None
    assert 0 <= (_held_out(differences, "pca") or 0) <= 1


def test_a_file_gives_the_same_vector_again(tmp_path: Path) -> None:
    model = both("llama", "cpu").model
    made = model.steering(PAIRS, "blocks.*.residual", method="pca")
    path = made.save(tmp_path / "formal.safetensors")
    again = read_vector(path)
    assert list(again.directions) == [f"blocks.{n}.residual" for n in range(model.blueprint.blocks)]
    assert (again.model, again.weights, again.method, again.tokens, again.pairs) == (
        model.name, model.weights_digest, "pca", "last", 3,
    )  # fmt: skip
    texts = [each.watch("the cat", max_new_tokens=6) for each in (model.steered({made: 2}), model.steered({str(path): 2}))]
    assert texts[0].ids == texts[1].ids
    assert model.replay(texts[1].receipt).identical
    assert "blocks.0.residual" in made.save(tmp_path / "made.html").read_text("utf-8")


def test_names_lead_to_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASS_HOME", str(tmp_path))
    model = both("llama").model
    (tmp_path / "steering").mkdir()
    model.steering(PAIRS, SITE).save(tmp_path / "steering" / "formal.safetensors")
    other = both("gpt2").model.steering(PAIRS, "blocks.0.residual").save(tmp_path / "steering" / "other.safetensors")
    assert model.steered({"formal": 1.0}).changes.keys() == {SITE}
    listed = model.steering_vectors()
    assert [(each.name, each.problem is None) for each in listed.vectors] == [("formal", True), ("other", False)]
    os.truncate(other, 20)
    assert "damaged" in (model.steering_vectors().vectors[1].problem or "")


def test_several_vectors_at_one_site_and_a_change_before_them() -> None:
    model = both("llama", "cpu").model
    made = model.steering(PAIRS, SITE)
    direction = made.vector.directions[SITE]
    changed = model.changed({SITE: Change(scale=0)})
    steered = changed.steered([{"name": made, "strength": 2.0}, {"name": made, "strength": -1.0}])
    expected = np.float32(2) * direction + np.float32(-1) * direction
    found = steered.read("the cat").at(SITE)
    np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))
    run = steered.watch("the cat", max_new_tokens=4)
    assert model.replay(run.receipt).identical


def test_control_vectors_of_llama_cpp(tmp_path: Path) -> None:
    model = both("llama").model
    directions = {n: np.random.default_rng(n).normal(size=48).astype(np.float32) for n in range(1, model.blueprint.blocks)}
    path = write_control_vector(tmp_path / "happy.gguf", {f"direction.{n}": d for n, d in directions.items()})
    vector = read_vector(path)
    assert (vector.model, vector.weights, vector.method) == ("llama", None, "control vector")
    steered = model.steered({str(path): 0.5})
    for number, direction in directions.items():
        np.testing.assert_array_equal(steered.changes[f"blocks.{number}.residual"].shift, direction * np.float32(0.5))


def write_control_vector(path: Path, tensors: dict[str, Any], architecture: str = "controlvector") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_string("controlvector.model_hint", "llama")
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


ZEROS = np.zeros(48, np.float32)


@pytest.mark.parametrize(
    ("tensors", "architecture", "message"),
    [
        ({"direction.0": ZEROS}, "controlvector", "block 0"),
        ({"direction.x": ZEROS}, "controlvector", "no direction"),
        ({"direction.1": np.full(48, np.nan, np.float32)}, "controlvector", "not all numbers"),
        ({"direction.1": ZEROS}, "llama", "not 'controlvector'"),
    ],
)
def test_other_gguf_files_are_refused(tensors: Any, architecture: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(GlassError, match=message):
        read_vector(write_control_vector(tmp_path / "bad.gguf", tensors, architecture))


def test_files_that_are_no_steering_vectors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    formats = {"format": "glassformer.steering/1"}
    for tensors, metadata, message in (
        ({SITE: ZEROS}, None, "no steering vector"),
        ({}, formats, "holds no direction"),
        ({SITE: np.full(48, np.inf, np.float32)}, formats, "not all numbers"),
    ):
        save_file(tensors, path, metadata)
        with pytest.raises(GlassError, match=message):
            read_vector(path)
    path.write_bytes(b"\x10")
    with pytest.raises(GlassError, match="damaged"):
        read_vector(path)


def steer(model: Any, vector: SteeringVector, strength: Any = 1.0) -> Any:
    return model.steered([{"name": vector, "strength": strength}])


def test_a_vector_of_another_model_is_refused() -> None:
    model = both("llama").model
    digest = model.weights_digest
    for vector, strength, message in (
        (SteeringVector({SITE: ZEROS}, "other", "f" * 64), 1.0, "other weights, those of other"),
        (SteeringVector({SITE: ZEROS[:5]}, "", digest), 1.0, r"shape \[5\] at blocks.1.residual"),
        (SteeringVector({"blocks.99.residual": ZEROS}, "", digest), 1.0, "no site matches 'blocks.99.residual'"),
        (SteeringVector({"blocks.0.attention.pattern": ZEROS}, "", digest), 1.0, "no numbers of its own for each token"),
        (SteeringVector({SITE: ZEROS + 1e30}, "", digest), 1e30, "too large for float32"),
    ):
        with pytest.raises(GlassError, match=message):
            steer(model, vector, strength)
    assert model.chat("the cat", max_new_tokens=2)


def test_unknown_ways_are_refused(tmp_path: Path) -> None:
    model = both("llama").model
    for ways in ({"tokens": "first"}, {"method": "median"}):
        with pytest.raises(GlassError):
            model.steering(PAIRS, SITE, **ways)
    with pytest.raises(GlassError, match=r"written as \.safetensors"):
        SteeringVector({SITE: ZEROS}).save(tmp_path / "vector.npz")


def test_a_servers_library_knows_no_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = both("llama").model
    inside, outside = tmp_path / "inside", tmp_path / "outside.safetensors"
    inside.mkdir()
    model.steering(PAIRS, SITE).save(outside)
    model.steering(PAIRS, SITE).save(inside / "formal.safetensors")
    (inside / "broken.safetensors").write_bytes(b"no")
    served = model.with_library(Library(inside))
    assert served.steered({"formal": 1.0}).changes
    for name in (str(outside), "../outside", "../outside.safetensors", "formal.safetensors", ".", "", "\0"):
        with pytest.raises(GlassError) as error:
            served.steered([{"name": name}])
        assert str(tmp_path) not in str(error.value).replace(repr(name), "")
    with pytest.raises(GlassError, match="server's log") as error:
        served.steered({"broken": 1.0})
    assert str(tmp_path) not in str(error.value)
    assert "broken" in caplog.text
    with pytest.raises(GlassError, match="none here"):
        model.with_library(Library()).steered({"formal": 1.0})
