"""Activations of many texts: equal to those of each text alone, on disk whole or not at all, and summed up in one pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import load_file

from glassformer.ground.errors import CheckpointError, InputError, WriteError
from glassformer.see import activation_files, recorded_activations, text_batches
from glassformer.see.activation_statistics import ActivationStatistics, Moments
from glassformer.see.recorded_activations import ActivationFiles, RecordedActivations
from glassformer.see.schema import schema
from tests.see.models import both, encoder, folder

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ["the cat sat", "a dog", "the cat sat on the mat and the rat", "a", "on the mat"]


def by_token(reading: Any, site: str) -> Any:
    """One text's values at a site, the axis of tokens first."""
    value = reading.values(site)[site]
    return np.moveaxis(value, 1, 0) if value.ndim == 3 else value


@pytest.mark.parametrize(
    ("family", "executor", "pattern"),
    [
        ("gpt2", "plain", "blocks.*.residual"),
        ("llama", "cpu", "blocks.*.attention.heads"),
        ("qwen3", "plain", "scores"),
        ("t5", "plain", "encoder.blocks.*.residual"),
        ("t5", "cpu", "encoder.blocks.*.mlp.hidden"),
        ("bert", "", "blocks.*.residual"),
    ],
)
def test_each_texts_values_are_those_of_the_text_alone(
    family: str, executor: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_batches, "BATCH_TOKENS", 20)  # several passes, and texts that are cut into chunks
    model = both(family, executor).model if executor else encoder(family).model
    recorded = model.read_many(TEXTS).record(pattern, folder=tmp_path / "acts")
    assert len(recorded) == len(TEXTS)
    assert recorded.rows == recorded.tokens == sum(len(text.ids) for text in recorded)
    for number, text in enumerate(TEXTS):
        reading = model.read(text)
        assert (recorded[number].text, recorded[number].ids) == (text, reading.source or reading.ids)
        for site in recorded.sites:
            expected = by_token(reading, site)
            if executor == "cpu":
                assert np.array_equal(recorded[number].values(site), expected)
            else:
                np.testing.assert_allclose(recorded[number].values(site), expected, rtol=1e-4, atol=1e-5)


def test_only_last_tokens_and_half_the_room(tmp_path: Path) -> None:
    model = both("llama", "cpu").model
    whole = model.read_many(TEXTS).record("blocks.1.residual", folder=tmp_path / "whole")
    last = model.read_many(TEXTS).record("blocks.1.residual", folder=tmp_path / "last", positions="last", dtype="float16")
    assert (last.rows, last.tokens) == (len(TEXTS), whole.tokens)
    for one, other in zip(last, whole, strict=True):
        assert np.array_equal(one.values("blocks.1.residual"), other.values("blocks.1.residual")[-1:].astype(np.float16))


def test_longer_texts_are_cut_and_counted(tmp_path: Path) -> None:
    recorded = both("gpt2").model.read_many(TEXTS, length=4).record("embedding", folder=tmp_path)
    assert [len(text.ids) for text in recorded] == [4, 4, 4, 1, 4]
    summary = recorded.summary()
    assert summary.cut == 4
    jsonschema.validate(json.loads(json.dumps(summary.to_dict())), schema(ActivationFiles))
    assert "4 texts had more tokens than were read" in str(summary)


def test_batches_have_every_row_once_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 3000)
    monkeypatch.setattr(recorded_activations, "BUFFER_BYTES", 9000)
    recorded = both("llama", "cpu").model.read_many(TEXTS * 3).record("blocks.0.residual", folder=tmp_path)
    assert len(recorded.index.shards) > 4
    rows = np.concatenate([text.values("blocks.0.residual") for text in recorded])
    assert np.array_equal(np.concatenate(list(recorded.batches("blocks.0.residual", 7))), rows)
    shuffled = recorded.batches("blocks.0.residual", 7, seed=3)
    first, second = list(shuffled), list(shuffled)
    assert len(first) == len(shuffled)
    assert {len(batch) for batch in first[:-1]} == {7}
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    joined = np.concatenate(first)
    assert not np.array_equal(joined, rows)
    assert np.array_equal(np.sort(joined, 0), np.sort(rows, 0))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_a_stopped_recording_ends_with_the_same_bytes(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 5000)
    model, texts = both("llama", executor).model, TEXTS * 3
    model.read_many(texts).record("blocks.*.residual", folder=tmp_path / "unbroken")

    def stopping() -> Iterator[str]:
        yield from texts[:12]
        raise StoppedError

    with pytest.raises(StoppedError):
        model.read_many(stopping()).record("blocks.*.residual", folder=tmp_path / "stopped")
    unfinished = RecordedActivations(tmp_path / "stopped")
    assert 0 < len(unfinished) < 12
    assert "--resume goes on" in str(unfinished.summary())
    model.read_many(texts).record("blocks.*.residual", folder=tmp_path / "stopped", resume=True)
    assert files(tmp_path / "stopped") == files(tmp_path / "unbroken")
    model.read_many(texts).record("blocks.*.residual", folder=tmp_path / "stopped", resume=True)  # nothing is left to do
    assert files(tmp_path / "stopped") == files(tmp_path / "unbroken")


def test_a_killed_recording_loses_no_whole_shard(tmp_path: Path) -> None:
    place = folder("llama", "causal")[0]
    code = f"""
import os, signal, glassformer
from glassformer.see import activation_files
activation_files.SHARD_BYTES = 5000
save, count = activation_files.save_tensors, 0
def dying(path, arrays, metadata=None):
    global count
    count += 1
    if count == 3:
        path.with_name("." + path.name + ".0123456789ab.part").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    save(path, arrays, metadata)
activation_files.save_tensors = dying
model = glassformer.load({str(place)!r}, executor="cpu", cache="f32")
model.read_many({TEXTS * 3!r}).record("blocks.*.residual", folder={str(tmp_path / "killed")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, env={**os.environ, "GLASS_THREADS": "1"})
    assert done.returncode == -9
    assert len(RecordedActivations(tmp_path / "killed").index.shards) == 2
    model = both("llama", "cpu").model
    activation_files.SHARD_BYTES, usual = 5000, activation_files.SHARD_BYTES
    try:
        for name in ("killed", "unbroken"):
            model.read_many(TEXTS * 3).record("blocks.*.residual", folder=tmp_path / name, resume=True)
    finally:
        activation_files.SHARD_BYTES = usual
    assert files(tmp_path / "killed") == files(tmp_path / "unbroken")
    assert not list((tmp_path / "killed").glob("*.part"))


@pytest.mark.parametrize("damage", ["cut", "missing", "other", "a folder"])
def test_a_damaged_shard_is_recorded_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation_files, "SHARD_BYTES", 5000)
    model, texts = both("llama", "cpu").model, TEXTS * 3
    model.read_many(texts).record("blocks.*.residual", folder=tmp_path)
    whole, shard = files(tmp_path), tmp_path / "shard-00001.safetensors"
    shard.unlink()
    if damage == "cut":
        shard.write_bytes(whole[shard.name][:1000])
    elif damage == "other":  # a good file, but not this shard's
        shard.write_bytes(whole["shard-00000.safetensors"] if len(whole) < 4 else whole[sorted(whole)[-1]])
    elif damage == "a folder":
        shard.mkdir()
        with pytest.raises(WriteError, match="is a folder"):
            model.read_many(texts).record("blocks.*.residual", folder=tmp_path, resume=True)
        return
    with pytest.raises(CheckpointError, match="shard-00001.*Record the same texts again with resume, which mends it"):
        [text.text for text in RecordedActivations(tmp_path)]
    with pytest.raises(InputError, match="other texts"):
        model.read_many([*texts[:-1], "more"]).record("blocks.*.residual", folder=tmp_path, resume=True)
    seen: list[tuple[int, int]] = []
    model.read_many(texts).record(
        "blocks.*.residual", folder=tmp_path, resume=True, progress=lambda *counts: seen.append(counts)
    )
    assert files(tmp_path) == whole
    assert all(0 < done <= total == len(texts) for done, total in seen)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    model = both("llama", "cpu").model

    def texts() -> Iterator[str]:
        yield "the cat"
        with pytest.raises(WriteError, match="another process"):
            model.read_many(TEXTS).record("blocks.0.residual", folder=tmp_path, resume=True)
        yield "a dog"

    assert len(model.read_many(texts()).record("blocks.0.residual", folder=tmp_path)) == 2


def test_nothing_is_recorded_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="cannot be written"):
        both("gpt2").model.read_many(TEXTS).record("embedding", folder=tmp_path / "file")


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    both("gpt2").model.read_many(TEXTS).record("embedding", folder=tmp_path)
    good = (tmp_path / "index.json").read_text()
    (tmp_path / "index.json").write_text(good.replace('"rows": ', '"rows": 1'))
    with pytest.raises(CheckpointError, match="is not as .* index says"):
        RecordedActivations(tmp_path)[0]
    for bad in ("{", "[]", "{}", good.replace("float32", "object"), good.replace('"texts": 5', '"texts": -5')):
        (tmp_path / "index.json").write_text(bad)
        with pytest.raises(InputError, match="Record (the activations|them) again"):
            RecordedActivations(tmp_path)


# Statistics ---------------------------------------------------------------------------------------------------------


def test_moments_are_numpys_however_the_rows_are_cut() -> None:
    rows = (np.random.default_rng(0).normal(size=(50, 4)) * [1, 2, 3, 1e-3] + [0, 5, 1e4, 100]).astype(np.float32)
    whole, variances = Moments(4, covariance=True), Moments(4, covariance=False)
    for part in np.split(rows, [1, 7, 30]):
        whole.add(part)
        variances.add(part)
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(whole.mean, exact.mean(0), rtol=1e-12)
    np.testing.assert_allclose(whole.covariance, np.cov(exact.T), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(variances.covariance, exact.var(0, ddof=1), rtol=1e-6)
    np.testing.assert_allclose(whole.deviation, variances.deviation, rtol=1e-6)


def test_statistics_are_those_of_all_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_batches, "BATCH_TEXTS", 2)
    model, site = both("llama", "cpu").model, "blocks.1.mlp.hidden"
    statistics = model.read_many(TEXTS).statistics(site, examples=3, covariance=True)
    recorded = model.read_many(TEXTS).record(site, folder=tmp_path / "acts")
    rows = np.concatenate([text.values(site) for text in recorded])
    arrays = load_file(statistics.save(tmp_path / "statistics.safetensors"))
    np.testing.assert_allclose(arrays[f"{site}.mean"], rows.mean(0, dtype=np.float64), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(arrays[f"{site}.covariance"], np.cov(rows.T.astype(np.float64)), rtol=1e-5, atol=1e-9)
    places = [(number, at) for number, text in enumerate(recorded) for at in range(len(text.ids))]
    for neuron in (0, 33):
        order = sorted(range(len(rows)), key=lambda at: (-rows[at, neuron], places[at]))[:3]
        found = zip(*(arrays[f"{site}.{name}"][neuron].tolist() for name in ("values", "texts", "positions")), strict=True)
        assert list(found) == [(float(rows[at, neuron]), *places[at]) for at in order]
    view = statistics.view([33])
    jsonschema.validate(json.loads(json.dumps(view.to_dict())), schema(ActivationStatistics))
    (example, *_) = view.sites[0].neurons[0].examples
    assert example.token == model.tokenizer.decode([recorded[example.text].ids[example.position]])
    assert f"{example.value:.2f}" in str(view)
    assert len(statistics.view().sites[0].neurons) == 8
