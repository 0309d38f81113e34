"""Features of a text: the view against the same by hand, and models whose features are clamped and steered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from glassformer import Change, GlassError
from glassformer.engine.protocol import BlockInput, Feed
from glassformer.features.dictionary import FeatureDictionary
from glassformer.ground.sites import Watch
from glassformer.see.schema import schema
from glassformer.see.tokens import describe_tokens
from glassformer.steering.library import Library
from tests.features.dictionaries import random_tensors, write_folder
from tests.see.models import EXECUTORS, both, encoder

TEXT = "the cat sat on the mat"
SITE = "blocks.0.residual"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "resid-0", "jumprelu")


def reference_loss(pair: Any, ids: Any, replace: Any = None) -> float:
    """The reference's loss, with a hook in the place of block 0's output."""

    def hook(module: Any, arguments: Any, output: Any) -> Any:
        return (replace(output[0]), *output[1:]) if isinstance(output, tuple) else replace(output)

    handle = pair.reference.model.layers[0].register_forward_hook(hook) if replace else None
    try:
        with torch.no_grad():
            return float(pair.reference(torch.tensor([ids]), labels=torch.tensor([ids])).loss)
    finally:
        if handle is not None:
            handle.remove()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_view_is_what_the_dictionary_gives(executor: str, folder: Path) -> None:
    pair = both("llama", executor)
    dictionary = pair.model.dictionary(str(folder))
    reading = pair.model.read(TEXT)
    view = reading.features(dictionary, best=3)
    states = reading.at(SITE)
    activations = dictionary.encode(states)
    rebuilt = dictionary.decode(activations, states)
    for token, row, state, back in zip(view.tokens, activations, states, rebuilt, strict=True):
        order = np.argsort(-row)[:3]
        assert [each.feature for each in token.features] == [int(n) for n in order if row[n] > 0]
        assert [each.activation for each in token.features] == pytest.approx([float(row[n]) for n in order if row[n] > 0])
        assert token.active == (row > 0).sum()
        assert token.error == pytest.approx(np.linalg.norm(state - back), rel=1e-5)
    best, later = view.features[0], activations[1:]
    assert best.feature == later.max(axis=0).argmax()
    assert best.positions[0] == 1 + later[:, best.feature].argmax()
    assert (best.largest, best.mean) == pytest.approx((later.max(), later[:, best.feature].mean()), rel=1e-5)
    assert best.active_tokens == (later[:, best.feature] > 0).sum()
    result = view.reconstruction
    errors = states - rebuilt
    assert result.mean_squared_error == pytest.approx((errors**2).mean(), rel=1e-4)
    variance = 1 - (errors**2).sum() / ((states - states.mean(axis=0)) ** 2).sum()
    assert result.explained_variance == pytest.approx(variance, rel=1e-4)
    later = 1 - (errors[1:] ** 2).sum() / ((states[1:] - states[1:].mean(axis=0)) ** 2).sum()
    assert result.later_explained_variance == pytest.approx(later, rel=1e-4)
    assert f"of the variance, {later:.1%} without the first token" in " ".join(str(view).split())
    only = pair.model.read("a").features(dictionary)
    assert only.features[0].feature == only.tokens[0].features[0].feature
    alone = only.reconstruction
    assert (alone.explained_variance, alone.later_explained_variance) == (None, None)
    assert result.active == pytest.approx((activations > 0).sum(axis=1).mean())

    def splice(value: Any) -> Any:
        rows = value[0].numpy()
        return torch.from_numpy(dictionary.decode(dictionary.encode(rows), rows))[None]

    losses = [reference_loss(pair, reading.ids, replace) for replace in (None, splice, torch.zeros_like)]
    assert [result.loss, result.spliced_loss, result.zeroed_loss] == pytest.approx(losses, abs=1e-3)
    recovered = (losses[2] - losses[1]) / (losses[2] - losses[0]) if losses[2] > losses[0] else None
    assert result.loss_recovered == pytest.approx(recovered, abs=2e-2)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", ["standard", "jumprelu", "topk", "gated"])
def test_a_clamped_feature_has_its_value_and_the_error_stays(kind: str, executor: str, tmp_path: Path) -> None:
    model = both("llama", executor).model
    dictionary = model.dictionary(write_folder(tmp_path / "sae", kind, normalize_activations="layer_norm"))
    before = model.read(TEXT).at(SITE)
    after = model.changed(dictionary.clamp({3: 4.0, 5: 0.0})).read(TEXT).at(SITE)
    activations = dictionary.encode(before)
    wanted = activations.copy()
    wanted[:, 3], wanted[:, 5] = 4.0, 0.0
    expected = dictionary.decode(wanted, before) + (before - dictionary.decode(activations, before))
    np.testing.assert_allclose(after, expected, atol=1e-4)


def test_the_loss_recovered_is_that_of_the_spliced_one() -> None:
    """On a model that has learned something: zeros cost much, a perfect reconstruction nothing."""
    from glassformer.see import features as module

    losses = iter([1.0, 2.0, 5.0])
    model = both("llama").model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_loss", lambda reading, watch: next(losses))
        assert model.read(TEXT).features(silent(48)).reconstruction.loss_recovered == 0.75


def test_a_function_of_the_same_is_the_same(folder: Path) -> None:
    """Bit for bit, and while generating."""
    model = both("llama", "cpu").model
    dictionary = model.dictionary(folder)

    def hold(value: Any, where: Any) -> Any:
        rows = value[0].numpy()
        missing = np.array([6.0], np.float32) - dictionary.encode_some(rows, [7])
        return value + torch.from_numpy(missing @ dictionary.direction(7)[None])

    runs = [
        model.changed(change).watch("the cat", max_new_tokens=8) for change in (dictionary.clamp({7: 6.0}), {SITE: hold})
    ]
    assert runs[0].ids == runs[1].ids
    assert [step.logprob for step in runs[0].steps] == [step.logprob for step in runs[1].steps]
    assert runs[0].ids != model.watch("the cat", max_new_tokens=8).ids
    with pytest.raises(GlassError, match=r"resid-0 \(features"):
        model.replay(runs[0].receipt)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_steering_by_features(executor: str, folder: Path) -> None:
    model = both("llama", executor).model
    dictionary = model.dictionary(folder)
    name = f"{folder}/9"
    steered = model.steered({name: 2.0})
    shift = np.float32(2) * dictionary.direction(9)
    np.testing.assert_array_equal(steered.read(TEXT).at(SITE), model.read(TEXT).at(SITE) + shift)
    run = steered.watch("the cat", max_new_tokens=4)
    assert model.replay(run.receipt).identical  # plain numbers, which a receipt holds
    clamped = model.steered([{"feature": name, "clamp": 3.0}])
    np.testing.assert_array_equal(clamped.read(TEXT).at(SITE), model.changed(dictionary.clamp({9: 3.0})).read(TEXT).at(SITE))
    entries: Any = [{"feature": name, "clamp": 3.0}, {"feature": name, "strength": 1}]
    both_at_once = model.changed({SITE: Change(scale=0)}).steered(entries)
    zeros = np.zeros((1, 48), np.float32)
    expected = (3 - dictionary.encode_some(zeros, [9])) * dictionary.direction(9) + dictionary.direction(9)
    np.testing.assert_allclose(both_at_once.read(TEXT).at(SITE)[0], expected[0], atol=1e-5)
    with pytest.raises(GlassError, match="cannot be replayed"):
        model.replay(both_at_once.watch("the cat", max_new_tokens=2).receipt)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_heads_lie_side_by_side(executor: str, tmp_path: Path) -> None:
    model = both("gpt2", executor).model
    heads, _, head_size = model.read(TEXT).shape("blocks.0.attention.heads")
    folder = write_folder(tmp_path / "z", "standard", random_tensors(width=heads * head_size, out=heads * head_size),
                          metadata={"hook_name": "blocks.0.attn.hook_z"})  # fmt: skip
    dictionary = model.dictionary(folder)
    before = model.read(TEXT).at("blocks.0.attention.heads")
    flat = before.transpose(1, 0, 2).reshape(before.shape[1], -1)
    view = model.read(TEXT).features(dictionary)
    assert view.tokens[2].features[0].activation == pytest.approx(dictionary.encode(flat)[2].max(), rel=1e-5)
    assert view.reconstruction.spliced_loss is not None
    after = model.changed(dictionary.clamp({1: 2.0})).read(TEXT).at("blocks.0.attention.heads")
    expected = flat + (2 - dictionary.encode(flat)[:, [1]]) * dictionary.direction(1)
    np.testing.assert_allclose(after.transpose(1, 0, 2).reshape(flat.shape), expected, atol=1e-4)
    steered = model.steered({f"{folder}/1": 2.0}).read(TEXT).at("blocks.0.attention.heads")
    np.testing.assert_allclose(steered.transpose(1, 0, 2).reshape(flat.shape), flat + 2 * dictionary.direction(1), atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_transcoder_predicts_another_site(executor: str, tmp_path: Path) -> None:
    model = both("llama", executor).model
    hooks = {"hook_name": "blocks.1.ln2.hook_normalized", "hook_name_out": "blocks.1.hook_mlp_out"}
    dictionary = model.dictionary(write_folder(tmp_path / "mlp-1", "transcoder", metadata=hooks))
    reading = model.read(TEXT)
    inputs, outputs = reading.at("blocks.1.mlp.input"), reading.at("blocks.1.mlp.update")
    view = reading.features(dictionary)
    errors = outputs - dictionary.decode(dictionary.encode(inputs), inputs)
    assert view.reconstruction.mean_squared_error == pytest.approx((errors**2).mean(), rel=1e-4)
    assert (view.site, view.site_out) == ("blocks.1.mlp.input", "blocks.1.mlp.update")
    spliced = model.changed({"blocks.1.mlp.update": Change(0.0, (outputs - errors), list(range(len(reading))))})
    logits = torch.from_numpy(spliced.read(TEXT).at("scores"))
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(reading.ids[1:]))
    assert view.reconstruction.spliced_loss == pytest.approx(float(loss), abs=1e-4)
    steered = model.steered({f"{tmp_path / 'mlp-1'}/4": 3.0}).read(TEXT).at("blocks.1.mlp.update")
    np.testing.assert_allclose(steered, outputs + 3 * dictionary.direction(4), atol=1e-5)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("hook", ["ln2.hook_normalized", "attn.hook_z"])
def test_a_clamped_feature_of_a_transcoder(hook: str, executor: str, tmp_path: Path) -> None:
    """It is computed where the transcoder reads, after the changes there, and replaced where it writes."""
    model = both("llama", executor).model
    hooks = {"hook_name": f"blocks.1.{hook}", "hook_name_out": "blocks.1.hook_mlp_out"}
    dictionary = model.dictionary(write_folder(tmp_path / "mlp-1", "transcoder", metadata=hooks))
    changed = model.changed({dictionary.site: Change(scale=1.5)})
    reading = changed.read(TEXT)
    inputs = reading.at(dictionary.site)
    rows = inputs if inputs.ndim == 2 else inputs.transpose(1, 0, 2).reshape(len(reading), -1)
    activations = dictionary.encode(rows)
    assert (activations[:, 4] > 0).any()
    wanted = activations.copy()
    wanted[:, 4], wanted[:, 6] = 2.0, 0.0
    expected = reading.at("blocks.1.mlp.update") + (wanted - activations) @ dictionary.decoder
    clamped = changed.steered(
        [{"feature": f"{tmp_path / 'mlp-1'}/{number}", "clamp": value} for number, value in ((4, 2), (6, 0))]
    )
    np.testing.assert_allclose(clamped.read(TEXT).at("blocks.1.mlp.update"), expected, atol=1e-4)
    assert clamped.changes["blocks.1.mlp.update"].inputs == (dictionary.site,) * 2


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_clamped_transcoder_writes_as_it_reads(executor: str, tmp_path: Path) -> None:
    """Token by token with a cache, in a batch whose other rows are held at something else or at nothing."""
    model = both("llama", executor).model
    hooks = {"hook_name": "blocks.0.ln2.hook_normalized", "hook_name_out": "blocks.0.hook_mlp_out"}
    dictionary = model.dictionary(write_folder(tmp_path / "mlp-0", "transcoder", metadata=hooks))
    models = [model, *(model.changed(dictionary.clamp({4: value})) for value in (9.0, -9.0))]
    runs = [each.watch("the cat", max_new_tokens=6) for each in models]
    assert len({tuple(run.ids) for run in runs}) == 3
    for each, run in zip(models, runs, strict=True):
        scores = each.read_ids([*run.prompt_ids, *run.ids]).at("scores")
        best = scores.argmax(-1)[len(run.prompt_ids) - 1 : -1]
        assert [int(token) for token in best] == list(run.ids)
    rows = [model.executor.open() for _ in models]
    ids = model.read(TEXT).ids
    feeds = [
        Feed(row, ids[: 3 + n], watch=Watch(changes=each.changes))
        for n, (row, each) in enumerate(zip(rows, models, strict=True))
    ]
    for n, (each, scores) in enumerate(zip(models, model.executor.run(feeds), strict=True)):
        alone = each.read_ids(ids[: 3 + n]).at("scores")[-1]
        np.testing.assert_allclose(scores.host(), alone, atol=1e-5)


def test_a_transcoder_must_read_before_it_writes(tmp_path: Path) -> None:
    model = both("llama", "cpu").model
    hooks = {"hook_name": "blocks.1.hook_mlp_out", "hook_name_out": "blocks.0.hook_mlp_out"}
    folder = write_folder(tmp_path / "back", "transcoder", metadata=hooks)
    for clamp in (
        lambda: model.steered([{"feature": f"{folder}/1", "clamp": 1.0}]),
        lambda: model.changed(model.dictionary(folder).clamp({1: 1.0})),
    ):
        with pytest.raises(GlassError, match=r"'blocks\.1\.mlp\.update'"):
            clamp()


def test_a_pass_that_begins_after_a_transcoder_reads_is_refused(tmp_path: Path) -> None:
    model = both("llama", "cpu").model
    hooks = {"hook_name": "blocks.0.hook_mlp_out", "hook_name_out": "blocks.1.hook_mlp_out"}
    dictionary = model.dictionary(write_folder(tmp_path / "across", "transcoder", metadata=hooks))
    executor, row = model.executor, model.executor.open()
    executor.run([Feed(row, [1, 2])])
    begin = BlockInput(1, np.zeros((2, model.config.hidden_size), np.float32))
    with pytest.raises(GlassError, match=r"begins at block 1 has no 'blocks\.0\.mlp\.update' to read"):
        executor.run([Feed(row, [1, 2], begin=begin, watch=Watch(changes=dictionary.clamp({1: 1.0})))])


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "gpt_oss", "qwen3_moe", "bert", "modernbert", "t5"])
def test_the_list_is_of_what_stands_between_the_special_tokens(family: str) -> None:
    """Held against what the dictionary finds at each token, in families with biases, post-norms, sinks, experts, too."""
    reads = family in ("bert", "modernbert")
    reading = encoder(family, "masked").model.read(TEXT) if reads else both(family).reading()
    site = "encoder.blocks.0.residual" if reading.source is not None else SITE
    tokens = reading.tokens if reading.source is None else reading.source_tokens
    width = reading.model.config.hidden_size
    weights = (random_tensors(width=width, out=width)[name] for name in ("W_enc", "b_enc", "W_dec", "b_dec"))
    dictionary = FeatureDictionary(*weights, site=site, site_out=site, name="any")
    written = [place for place, token in enumerate(tokens) if place and not token.special]
    activations = dictionary.encode(reading.at(site))[written]
    view = reading.features(dictionary)
    for summary in view.features:
        column = activations[:, summary.feature]
        assert (summary.largest, summary.mean) == pytest.approx((column.max(), column.mean()), rel=1e-4)
        assert {*summary.positions} <= {*written}
    assert view.features[0].largest == pytest.approx(activations.max(), rel=1e-4)


def test_encoders_and_encoder_decoders(tmp_path: Path) -> None:
    bert = encoder("bert").model
    width = bert.config.hidden_size
    folder = write_folder(tmp_path / "bert", "topk", random_tensors("topk", width, width))
    view = bert.read("the cat").features(bert.dictionary(folder))
    assert view.reconstruction.loss is None
    assert len(view.tokens) == len(bert.read("the cat"))
    t5 = both("t5", "cpu").model
    width = t5.config.hidden_size
    folder = write_folder(tmp_path / "t5", "standard", random_tensors(width=width, out=width),
                          metadata={"hook_name": "encoder.blocks.0.residual"})  # fmt: skip
    view = t5.read(TEXT, "a dog sat").features(t5.dictionary(folder))
    assert [token.token for token in view.tokens] == [token.text for token in t5.read(TEXT).source_tokens]
    assert view.reconstruction.spliced_loss is not None
    assert view.features[0].promotes == ()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_feature_promotes_the_tokens_whose_logits_its_direction_raises_most(executor: str, tmp_path: Path) -> None:
    """Through the final norm's weight, and no bias: a bias is the same for every direction."""
    pair = both("gpt2", executor)
    width, tokenizer = pair.model.config.hidden_size, pair.model.tokenizer
    folder = write_folder(
        tmp_path / "gpt2", "standard", random_tensors(width=width, out=width), metadata={"hook_name": SITE}
    )
    dictionary = pair.model.dictionary(folder)
    weights = {name: value.double().numpy() for name, value in pair.reference.state_dict().items()}
    assert np.abs(weights["transformer.ln_f.bias"]).max() > 0.1
    for feature in pair.model.read(TEXT).features(dictionary).features:
        direction = dictionary.direction(feature.feature)
        logits = weights["lm_head.weight"] @ (weights["transformer.ln_f.weight"] * (direction - direction.mean()))
        best = np.argsort(-logits, kind="stable")[:5]
        assert feature.promotes == tuple(token.text for token in describe_tokens(tokenizer, best.tolist()))


def test_every_form_of_the_view(folder: Path, tmp_path: Path) -> None:
    model = both("llama").model
    view = model.read(TEXT).features(model.dictionary(folder))
    data = json.loads(view.save(tmp_path / "features.json").read_text("utf-8"))
    jsonschema.validate(data, schema(type(view)))
    assert data["schema"] == "glassformer.features/1"
    assert "of the variance" in " ".join(str(view).split())
    assert str(view.features[0].feature) in view.save(tmp_path / "features.html").read_text("utf-8")
    quiet = model.read("the cat").features(silent(48))
    assert (quiet.features, quiet.reconstruction.active, quiet.tokens[0].features) == ((), 0.0, ())
    assert "On average 0.0 are active" in str(quiet)


def silent(width: int) -> FeatureDictionary:
    """A dictionary none of whose features is ever active."""
    zeros, bias = np.zeros((width, 4), np.float32), np.zeros(width, np.float32)
    return FeatureDictionary(zeros, np.full(4, -1, np.float32), zeros.T.copy(), bias, SITE, SITE, "silent")


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    model = both("llama").model
    with pytest.raises(GlassError, match="48 numbers"):
        model.dictionary(folder, "blocks.0.mlp.hidden")
    with pytest.raises(GlassError, match="no site matches"):
        model.dictionary(folder, "blocks.77.residual")
    with pytest.raises(GlassError, match="at least 1"):
        model.read(TEXT).features(model.dictionary(folder), best=0)
    for steer, message in (
        ({"feature": f"{folder}/96", "clamp": 2.0}, "has no feature 96"),
        ({"feature": f"{folder}/1", "clamp": float("inf")}, "must be finite"),
    ):
        with pytest.raises(GlassError, match=message):
            model.steered([steer])


def test_the_dictionaries_of_a_library(folder: Path, tmp_path: Path) -> None:
    model = both("llama").model
    write_folder(tmp_path / "wide", "standard", random_tensors(width=8, out=8))
    write_folder(tmp_path / "broken", "topk", k=0)
    library = Library(features=tmp_path)
    listed = {each.name: each.problem for each in model.with_library(library).feature_dictionaries().dictionaries}
    assert listed["resid-0"] is None
    assert "is for 8 numbers" in (listed["wide"] or "")
    assert listed["broken"] == "the dictionary of features 'broken' cannot be opened; the server's log says why."
    served = model.with_library(library)
    assert served.steered([{"feature": "resid-0/3", "clamp": 1.0}]).changes.keys() == {SITE}
    with pytest.raises(GlassError, match="There are: broken, resid-0, wide"):
        served.dictionary(str(folder))


def test_a_dictionary_that_was_changed_is_read_again(folder: Path) -> None:
    model = both("llama").model
    first = model.dictionary(folder)
    assert model.dictionary(folder) is first
    write_folder(folder, "topk", k=2)
    assert model.dictionary(folder).k == 2
