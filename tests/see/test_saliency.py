"""Gradients as a view: against the reference's own, finite differences, and the sums that they must keep."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

import glassformer
from glassformer.cli.app import app
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see import differentiation, leave_one_out
from glassformer.see import saliency as module
from glassformer.see.saliency import Saliency, SaliencyMethod
from glassformer.see.schema import schema
from tests.see.models import EXECUTORS, WRITERS, Both, both, encoder, folder

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = [
    (family, executor) for family in WRITERS for executor in EXECUTORS if executor == "cpu" or family in ("llama", "t5")
]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> Both:
    return both(*request.param)


def reference_vectors(pair: Both, reading: Any) -> list[Tensor]:
    """The reference's embeddings of a text's tokens: the source's, then the target's."""
    embed = pair.reference.get_input_embeddings()
    stacks = [reading.source, reading.ids] if pair.sourced else [reading.ids]
    return [embed(torch.tensor([ids])).detach() for ids in stacks]


def reference_logits(pair: Both, vectors: list[Tensor]) -> Tensor:
    names = ["inputs_embeds", "decoder_inputs_embeds"][: len(vectors)]
    logits: Tensor = pair.reference(**dict(zip(names, vectors, strict=True))).logits[0]
    return logits


def reference_gradients(pair: Both, vectors: list[Tensor], metric: Callable[[Tensor], Tensor]) -> tuple[float, list[Tensor]]:
    vectors = [stack.detach().requires_grad_() for stack in vectors]
    value = metric(reference_logits(pair, vectors))
    return value.item(), list(torch.autograd.grad(value, vectors))


def joined(values: list[Tensor]) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = torch.cat([stack[0] for stack in values]).numpy()
    return found


METRICS: dict[str, tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = {
    "a logit": ({"token": 3, "metric": "logit"}, lambda logits: logits[-1, 3]),
    "a lead": ({"token": 3, "against": 5}, lambda logits: logits[-1, 3] - logits[-1, 5]),
    "a log-probability": ({"token": 4, "metric": "log-probability"}, lambda logits: logits[-1].log_softmax(-1)[4]),
    "an earlier position": ({"token": 3, "position": 1, "metric": "logit"}, lambda logits: logits[1, 3]),
    "a function": (
        {"metric": lambda logits: logits[1:3].logsumexp(-1).sum()},
        lambda logits: logits[1:3].logsumexp(-1).sum(),
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_one_backward_pass_is_the_references(pair: Both, name: str) -> None:
    reading, (asked, metric) = pair.reading(), METRICS[name]
    vectors = reference_vectors(pair, reading)
    value, gradients = reference_gradients(pair, vectors, metric)
    products = [(vector * gradient).sum(-1) for vector, gradient in zip(vectors, gradients, strict=True)]
    view = reading.saliency(**asked, method="input-x-gradient")
    assert view.value == pytest.approx(value, abs=1e-4)
    np.testing.assert_allclose(np.asarray(view), joined(products), atol=2e-4, rtol=1e-3)
    norms = reading.saliency(**asked, method="gradient-norm")
    np.testing.assert_allclose(
        np.asarray(norms), joined([gradient.norm(dim=-1) for gradient in gradients]), atol=2e-4, rtol=1e-3
    )
    sides = [token.in_source for token in view.tokens]
    assert sides == [True] * len(reading.source or ()) + [False] * len(reading.ids)


def test_the_loss_is_the_references(pair: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = pair.reading()
    labels = torch.tensor(reading.ids[1:])

    def loss(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits[:-1], labels)

    vectors = reference_vectors(pair, reading)
    value, gradients = reference_gradients(pair, vectors, loss)
    for positions in (256, 2):  # whole, and a few at a time
        monkeypatch.setattr(differentiation, "LOSS_POSITIONS", positions)
        view = reading.saliency(metric="loss", method="gradient-norm")
        assert view.value == pytest.approx(value, abs=1e-4)
        np.testing.assert_allclose(
            np.asarray(view), joined([gradient.norm(dim=-1) for gradient in gradients]), atol=1e-4, rtol=1e-3
        )


def test_integrated_gradients_are_the_references_along_the_line(pair: Both) -> None:
    """By the same rule, written out."""
    reading, metric = pair.reading(), METRICS["a lead"][1]
    vectors = reference_vectors(pair, reading)
    embed = pair.reference.get_input_embeddings()
    mean = embed(torch.arange(pair.model.config.vocab_size)).detach().mean(0)
    points, weights = np.polynomial.legendre.leggauss(5)
    total = [torch.zeros(1, stack.shape[1]) for stack in vectors]
    for point, weight in zip(points, weights, strict=True):
        share = float(point + 1) / 2
        _, gradients = reference_gradients(pair, [mean + share * (stack - mean) for stack in vectors], metric)
        for number, gradient in enumerate(gradients):
            total[number] += float(weight) / 2 * (gradient * (vectors[number] - mean)).sum(-1)
    view = reading.saliency(3, 5, method="integrated", steps=5)
    np.testing.assert_allclose(np.asarray(view), joined(total), atol=1e-3, rtol=1e-2)
    assert view.path is not None
    assert view.path.baseline_value == pytest.approx(
        metric(reference_logits(pair, [mean.expand_as(stack) for stack in vectors])).item(), abs=1e-3
    )
    assert view.path.error == pytest.approx(np.asarray(view).sum() - (view.value - view.path.baseline_value), abs=1e-6)


def test_as_many_steps_as_bring_the_sum_near(pair: Both) -> None:
    told: list[tuple[int, int]] = []
    view = pair.reading().saliency(3, 5, method="integrated", progress=lambda done, most: told.append((done, most)))
    assert view.path is not None
    assert abs(view.path.error) <= module.TOLERANCE * abs(view.value - view.path.baseline_value)
    assert view.path.steps <= module.MAX_STEPS
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_padding_token_as_the_baseline() -> None:
    pair = encoder()
    pad = pair.model.tokenizer.pad_token_id
    reading = pair.model.read("the cat sat on [MASK]")
    view = reading.saliency(method="integrated", baseline="pad")
    assert view.path is not None
    all_pad = pair.model.read_ids([pad] * len(reading.ids))
    value = all_pad.saliency(view.token.id, view.against.id, position=view.position).value
    assert view.path.baseline_value == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_computed_twice_it_is_the_same(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text's activations are not kept; under a change too."""
    monkeypatch.setattr(module, "_compare", lambda *arguments: (None, None))  # reads shorter texts
    calls: list[str] = []

    def double(value: Tensor, where: Any) -> Tensor:
        calls.append(where.site)
        return value * 2

    pair = both(family)
    model = pair.model.changed({"blocks.0.attention.input": double})
    reading = model.read("the cat", "a dog") if pair.sourced else model.read("the cat")
    sites = ("*residual", "*pattern")
    kept, kept_at = reading.saliency(3, 5, method="gradient-norm"), reading.gradients(*sites, token=3, against=5)
    once = len(calls)
    monkeypatch.setattr(differentiation, "KEPT_BYTES", 0)
    recomputed, recomputed_at = reading.saliency(3, 5, method="gradient-norm"), reading.gradients(*sites, token=3, against=5)
    assert len(calls) == 3 * once  # here and there again on the way back
    np.testing.assert_allclose(np.asarray(recomputed), np.asarray(kept), rtol=1e-5, atol=1e-6)
    for site, gradient in kept_at.items():
        np.testing.assert_allclose(recomputed_at[site], gradient, rtol=1e-5, atol=1e-6)
    assert recomputed.changes == ("blocks.0.attention.input",)
    assert "under a change of blocks.0.attention.input" in str(recomputed)


# Sites ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["gpt2", "llama", pytest.param("t5", marks=pytest.mark.sweep)])
def test_gradients_at_every_site_by_finite_differences(family: str) -> None:
    """In float64, along a random direction at each site."""
    place, _ = folder(family, WRITERS[family])
    model = glassformer.load(place, executor="plain", dtype="float64")
    reading = model.read("the cat", "a dog") if family == "t5" else model.read("the cat")
    sites = [site for site in reading.sites("*") if site != "scores"]
    gradients = reading.gradients(*sites, token=3, against=5)
    assert list(gradients) == sites
    random, size = np.random.default_rng(0), 1e-5
    for site in sites:
        assert gradients[site].shape == reading.shape(site)
        direction = torch.from_numpy(random.standard_normal(gradients[site].shape))
        values = []
        for way in (size, -size):
            moved = model.changed({site: lambda value, where, way=way, direction=direction: value + way * direction})
            values.append(type(reading)(moved, reading.ids, reading.source).saliency(3, 5, method="gradient-norm").value)
        slope = (values[0] - values[1]) / (2 * size)
        assert slope == pytest.approx(float((gradients[site] * direction.numpy()).sum()), rel=2e-3, abs=2e-5), site


def test_gradients_in_the_stream_are_the_references() -> None:
    pair = both("llama", "cpu")
    reading = pair.reading()
    output = pair.reference(torch.tensor([reading.ids]), output_hidden_states=True)
    expected = torch.autograd.grad(output.logits[0, -1, 3], output.hidden_states[1:-1])
    gradients = reading.gradients("blocks.*.residual", token=3, metric="logit")
    for number, gradient in enumerate(expected):
        np.testing.assert_allclose(gradients[f"blocks.{number}.residual"], gradient[0].numpy(), atol=1e-4, rtol=1e-3)


# Models that read -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("head", ["masked", "sequence", "token", "question"])
def test_encoders_are_the_references(head: str) -> None:
    pair = encoder("bert", head)
    reading = pair.model.read("the [MASK] sat on")
    position = {"masked": None, "sequence": None}.get(head, 2)
    vectors = reference_vectors(pair, reading)[0].requires_grad_()
    output = pair.reference(inputs_embeds=vectors)
    logits = output.end_logits[0, 2] if head == "question" else output.logits[0]
    value = logits if head == "question" else logits[1] if head == "sequence" else logits[2, 1]
    (gradient,) = torch.autograd.grad(value, vectors)
    asked: dict[str, Any] = {"position": position, "metric": "logit", "method": "input-x-gradient"}
    view = reading.saliency(1, **asked)
    assert view.value == pytest.approx(value.item(), abs=1e-4)
    np.testing.assert_allclose(np.asarray(view), (vectors * gradient).sum(-1)[0].detach().numpy(), atol=1e-4, rtol=1e-3)
    assert view.token is not None
    assert view.token.text == {"sequence": "LABEL_1", "token": "LABEL_1", "question": "end"}.get(head, view.token.text)
    best = reading.saliency(**asked)
    assert best.token is not None
    assert best.value >= view.value or head == "question"
    if head != "masked":
        assert reading.saliency(view.token.text, **asked) == view
    whole = reading.saliency(1, position=position, method="integrated", baseline="zero")
    assert whole.path is not None
    assert abs(whole.path.error) <= module.TOLERANCE * abs(whole.value - whole.path.baseline_value)


def test_a_model_without_a_head_has_its_states() -> None:
    reading = encoder("bert", "base").model.read("the cat")
    view = reading.saliency(metric=lambda states: states[0].norm())
    assert view.value > 0
    assert np.abs(np.asarray(view)).max() > 0


# What it looks like, and what is refused ------------------------------------------------------------------------------
@pytest.mark.parametrize("method", get_args(SaliencyMethod))
def test_json_and_pictures(method: SaliencyMethod) -> None:
    for view in (both("gpt2").reading().saliency(method=method), both("t5").reading().saliency(3, 5, method=method)):
        jsonschema.validate(json.loads(json.dumps(view.to_dict(), allow_nan=False)), schema(Saliency))
        for width in (80, 120):
            shown = plain_text(TerminalPage(view.page(everything=True)), width)
            assert max(map(len, shown.splitlines())) <= width
        strongest = view.strongest[0]
        assert abs(strongest.value) == np.abs(np.asarray(view)).max()
        assert f"{abs(strongest.value):.4f}" in shown
        assert ("the source, which the encoder reads" in shown) == any(token.in_source for token in view.tokens)
        assert ("off by" in shown) == (method == "integrated")
        assert repr(view).startswith(f"Saliency({method} of ")
        assert "rgba(var(--" in view._repr_html_()


@pytest.mark.parametrize(("error", "reliable"), [(0.05, True), (-0.3, False)])
def test_sums_that_are_far_off_are_not_to_be_relied_on(error: float, reliable: bool) -> None:
    view = both("gpt2").reading().saliency(method="integrated")
    assert view.path is not None
    off = replace(view.path, error=error * (view.value - view.path.baseline_value))
    shown = plain_text(TerminalPage(replace(view, path=off).page()), 120)
    assert ("Do not rely on these values" in shown) is not reliable


def test_a_long_text_shows_its_strongest_tokens() -> None:
    view = both("gpt2").model.read("the cat sat on the mat " * 5).saliency()
    assert f"the 64 strongest of {len(view.tokens)} tokens (--all)" in str(view)
    assert "strongest" not in plain_text(TerminalPage(view.page(everything=True)), 80)


def test_numbers_that_are_not_finite() -> None:
    model = both("gpt2").model.changed({"blocks.0.mlp.update": Change(shift=float("inf"))})
    for method in get_args(SaliencyMethod):
        with pytest.raises(InputError, match="float32"):
            model.read("the cat").saliency(3, metric="logit", method=method)


def test_the_verb() -> None:
    place, _ = folder("gpt2", "causal")
    arguments = ["saliency", "-m", str(place), "--raw", "the cat", "--of", "#3", "--against", "#5", "--json"]
    answer = CliRunner().invoke(app, [*arguments, "--method", "integrated", "--steps", "4"])
    assert answer.exit_code == 0, answer.output
    view = both("gpt2", "cpu").model.read("the cat", raw=True).saliency(3, 5, method="integrated", steps=4)
    data = json.loads(answer.stdout)
    assert [token["value"] for token in data["tokens"]] == pytest.approx(np.asarray(view).tolist(), abs=1e-5)
    refused = CliRunner().invoke(app, [*arguments, "--steps", "4"])
    assert refused.exit_code != 0
    assert "or take --method integrated" in str(refused.exception)


# Leaving tokens out ---------------------------------------------------------------------------------------------------
def logits_of(pair: Both, ids: Sequence[int], source: Sequence[int] | None) -> Tensor:
    """The reference's, after the last of some tokens."""
    with torch.no_grad():
        if source is None:
            output = pair.reference(torch.tensor([list(ids)]))
        else:
            output = pair.reference(torch.tensor([list(source)]), decoder_input_ids=torch.tensor([list(ids)]))
    logits: Tensor = output.logits[0, -1]
    return logits


def without(ids: Sequence[int], at: int) -> list[int]:
    return [*ids[:at], *ids[at + 1 :]]


@pytest.mark.every_family
@pytest.mark.parametrize("family", [*WRITERS, "gemma2", "olmo2", "gpt_oss", "olmoe"])
def test_by_default_a_token_matters_as_much_as_the_lead_loses_without_it(family: str) -> None:
    for executor in ("plain", "cpu"):
        pair = both(family, executor)
        reading = pair.reading("the cat", "a dog")
        view, whole = reading.saliency(), logits_of(pair, reading.ids, reading.source)
        first, second = whole.topk(2).indices.tolist()
        assert view.token is not None
        assert view.against is not None
        assert (view.method, view.metric, view.token.id, view.against.id) == ("leave-one-out", "lead", first, second)
        assert view.value == pytest.approx(float(whole[first] - whole[second]), abs=2e-3)
        for token in view.tokens:
            ids, source = reading.ids, reading.source
            if token.in_source:
                source = without(source, token.position)
            else:
                ids = without(ids, token.position)
            left = logits_of(pair, ids, source)
            assert token.value == pytest.approx(view.value - float(left[first] - left[second]), abs=4e-3)
        places = [(token.in_source, token.position) for token in view.tokens]
        start = 1 if pair.sourced else 0  # a decoder's start cannot be left out
        expected = [(True, at) for at in range(len(reading.source or ()))]
        assert places == expected + [(False, at) for at in range(start, len(reading.ids))]


def test_tokens_after_the_answer_do_not_matter_and_many_rows_are_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = both("llama", "cpu").reading()
    view = reading.saliency(3, 5, position=4)
    assert [token.value for token in view.tokens[5:]] == [0.0] * (len(reading.ids) - 5)
    assert all(token.value for token in view.tokens[:5])
    for name in ("BATCH_TOKENS", "BATCH_ROWS"):
        monkeypatch.setattr(leave_one_out, name, 1)
        assert reading.saliency(3, 5, position=4) == view


@pytest.mark.parametrize("head", ["masked", "sequence", "token", "question"])
def test_encoders_leave_tokens_out_too(head: str) -> None:
    reading = encoder("bert", head).model.read("the [MASK] sat on")
    position = {"masked": None, "sequence": None}.get(head, 2)
    view = reading.saliency(1, position=position)
    assert view.metric == ("logit" if head == "question" else "lead")
    at = view.position
    assert [token.position for token in view.tokens] == [place for place in range(len(reading.ids)) if place != at]
    shorter = reading.model.read_ids(without(reading.ids, 1))
    place = None if at is None or head == "masked" else at - 1
    rival = None if view.against is None else view.against.id
    expected = view.value - shorter.saliency(1, rival, place).value
    assert view.tokens[1].position == 1
    assert view.tokens[1].value == pytest.approx(expected, abs=1e-5)


def test_the_loss_and_functions_of_the_logits_without_a_token() -> None:
    reading = both("gpt2").reading("the cat")
    for metric in ("loss", lambda logits: logits[-1, 3]):
        view = reading.saliency(metric=metric)
        shorter = reading.model.read_ids(without(reading.ids, 2))
        assert view.tokens[2].value == pytest.approx(view.value - shorter.saliency(metric=metric).value, abs=1e-4)


def test_gradients_stand_beside_leaving_tokens_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank correlation with it on this text, and how often the sign is that of leaving the token out."""
    for pair in (both("llama"), both("t5")):
        reading = pair.reading("the cat", "a dog")
        left_out = {(token.in_source, token.position): token.value for token in reading.saliency(3, 5).tokens}
        for method in ("input-x-gradient", "integrated"):
            view = reading.saliency(3, 5, method=method)
            assert view.signs is not None
            able = [token for token in view.strongest if (token.in_source, token.position) in left_out]
            losses = [left_out[token.in_source, token.position] for token in able]
            agree = sum(token.value * loss > 0 for token, loss in zip(able[: view.signs.checked], losses, strict=False))
            assert (view.signs.checked, view.signs.agree) == (min(8, len(able)), agree)
            correlation = np.corrcoef(*(np.argsort(np.argsort(x)) for x in ([token.value for token in able], losses)))[0, 1]
            assert view.agreement is not None
            assert (view.agreement.tokens, view.agreement.correlation) == (len(able), pytest.approx(correlation, abs=1e-6))
            shown = " ".join(plain_text(TerminalPage(view.page()), 120).split())
            assert f"{agree} have the sign of leaving the token out" in shown
            assert f"The rank correlation with leaving the token out is {correlation:+.2f} on this text" in shown
        norms = reading.saliency(3, 5, method="gradient-norm")
        assert norms.signs is None
        assert norms.agreement is not None
        assert "with what leaving the token out changes is" in " ".join(str(norms).split())
        assert reading.saliency(3, 5).agreement is None
    reading = both("llama").reading()
    monkeypatch.setattr(module, "COMPARED_TOKENS", 40)
    view = reading.saliency(3, 5, method="input-x-gradient")
    assert view.agreement is not None
    assert 1 < view.agreement.tokens < len(view.tokens)
    assert f"on this text, over {view.agreement.tokens} tokens." in " ".join(str(view).split())


def test_a_token_alone_has_no_signs() -> None:
    alone = both("gpt2").model.read("a").saliency(method="input-x-gradient")
    assert (alone.signs, alone.agreement) == (None, None)
