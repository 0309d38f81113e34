"""Attribution patching: each estimate against hooks on the reference, finite differences, and true patching."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import glassformer
from glassformer.cli.app import app
from glassformer.ground.changes import Change
from glassformer.page.terminal import TerminalPage, plain_text
from glassformer.see import differentiation
from glassformer.see.patching.compute import BY_HEAD, SITES
from glassformer.see.patching.estimate import compare_with_patching
from glassformer.see.patching.view import AttributionPatching, PatchedPart
from glassformer.see.schema import schema
from tests.see.models import WRITERS, Both, both, encoder, folder
from tests.see.test_patching import FIRST, RECURRENT_PARTS, SECOND, answers, blocks, patching, readings, stream
from tests.sweeps import swept

pytestmark = pytest.mark.usefixtures("one_thread")
PAIRS = [*((family, "cpu") for family in WRITERS), ("llama", "plain"), ("t5", "plain")]
PARTS = [part for part in get_args(PatchedPart) if part not in RECURRENT_PARTS]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> Both:
    return both(*request.param)


def estimated(pair: Both, *arguments: Any, **asked: Any) -> AttributionPatching:
    target = {"target": "a dog sat"} if pair.sourced else {}
    view: AttributionPatching = pair.model.attribution_patch(FIRST, SECOND, *arguments, **asked, **target)
    return view


def hooked(pair: Both, reading: Any, asked: dict[str, int]) -> tuple[float, list[torch.Tensor], list[torch.Tensor]]:
    """The reference's lead after a text, each block's output, and the lead's gradient there."""
    kept: list[torch.Tensor] = []
    handles = [block.register_forward_hook(lambda _, __, output: kept.append(stream(output))) for block in blocks(pair)]
    ids = {"input_ids": torch.tensor([reading.ids])}
    if pair.sourced:
        ids = {"input_ids": torch.tensor([reading.source]), "decoder_input_ids": torch.tensor([reading.ids])}
    try:
        scores = pair.reference(**ids).logits[0, -1]
    finally:
        for handle in handles:
            handle.remove()
    lead = scores[asked["answer"]] - scores[asked["against"]]
    gradients = torch.autograd.grad(lead, kept)
    return lead.item(), [value[0].detach() for value in kept], [gradient[0] for gradient in gradients]


def test_each_estimate_in_the_stream_is_the_references(pair: Both) -> None:
    asked = answers(pair)
    first, second = readings(pair)
    clean, values, _ = hooked(pair, first, asked)
    corrupted, others, gradients = hooked(pair, second, asked)
    estimate = estimated(pair, **asked).estimate
    assert estimate.differences == pytest.approx((clean, corrupted), abs=1e-3)
    for layer in range(len(values)):
        expected = ((values[layer] - others[layer]) * gradients[layer]).sum(-1) / (clean - corrupted)
        for position in estimate.positions:
            assert estimate.at(layer, position) == pytest.approx(float(expected[position]), abs=3e-3)


@pytest.mark.parametrize("family", ["llama", *swept(["gpt2", "falcon_h1", "t5"])])
def test_each_estimate_is_the_slope_of_its_patch(family: str) -> None:
    """In float64: a thousandth of a patch moves the answer by a thousandth of the estimate."""
    place, _ = folder(family, WRITERS.get(family, "causal"))
    pair = Both(glassformer.load(place, executor="plain", dtype="float64"), both(family).reference, family)
    first, second = readings(pair)
    asked = answers(pair)
    share = 1e-4
    for part in (*PARTS, *(RECURRENT_PARTS if family == "falcon_h1" else ())):
        estimate = estimated(pair, part, **asked).estimate
        clean, corrupted = estimate.differences
        prefix = "encoder." if pair.sourced else ""
        site = prefix + SITES[part].format(1)
        difference = first.at(site) - second.at(site)
        for column in range(0, len(estimate.columns), 3):
            positions = list(estimate.positions) if part in BY_HEAD else [estimate.positions[column]]
            heads = [column] if part in BY_HEAD else None
            own = difference[column][None, positions] if part in BY_HEAD else difference[positions[0]]
            leads = []
            for way in (share, -share):
                change = {site: Change(shift=way * own, positions=positions, heads=heads)}
                changed = type(second)(pair.model.changed(change), second.ids, second.source)
                leads.append(changed.saliency(asked["answer"], asked["against"], method="gradient-norm").value)
            slope = (leads[0] - leads[1]) / (2 * share) / (clean - corrupted)
            assert estimate.values[1 + (part == "residual")][column] == pytest.approx(slope, rel=2e-3, abs=2e-3), part


@pytest.mark.parametrize("part", PARTS)
def test_the_axes_are_those_of_patching(pair: Both, part: PatchedPart) -> None:
    asked = answers(pair)
    view = estimated(pair, part, **asked, check=True)
    assert view.check is not None
    true = patching(*readings(pair), part, **asked)
    assert view.check.patching == true
    for name in (
        "model",
        "part",
        "texts",
        "tokens",
        "answers",
        "layers",
        "positions",
        "heads",
        "sharing",
        "best",
        "changes",
    ):
        assert getattr(view.estimate, name) == getattr(true, name)
    assert view.estimate.differences == pytest.approx(true.differences, abs=1e-4)
    assert np.asarray(view).shape == np.asarray(true).shape
    jsonschema.validate(json.loads(json.dumps(view.to_dict(), allow_nan=False)), schema(AttributionPatching))
    for width in (80, 120):
        shown = plain_text(TerminalPage(view.page(everything=True)), width)
        assert max(map(len, shown.splitlines())) <= width
    assert f"mean error {view.check.mean_error:.1%}" in shown


def test_how_far_off_an_estimate_is() -> None:
    pair = both("gpt2")
    view = estimated(pair, "heads", **answers(pair), check=True)
    assert view.check is not None
    estimates, patched = np.asarray(view), np.asarray(view.check.patching)
    assert view.check.correlation == pytest.approx(np.corrcoef(estimates.ravel(), patched.ravel())[0, 1])
    assert view.check.mean_error == pytest.approx(np.abs(estimates - patched).mean())
    errors = [abs(miss.estimate - miss.patched) for miss in view.check.misses]
    assert errors == sorted(errors, reverse=True)
    assert len(errors) == estimates.size
    worst = view.check.misses[0]
    assert worst.estimate == view.at(worst.layer, int(worst.place))
    assert view.cells[0].value == estimates.ravel()[np.abs(estimates).argmax()]
    assert f"correlation {view.check.correlation:.3f}" in str(view)
    assert repr(view).startswith("AttributionPatching(")
    same = compare_with_patching(view.check.patching, view.check.patching)
    assert (same.correlation, same.mean_error) == (pytest.approx(1.0), 0.0)
    unchecked = estimated(pair, "heads", **answers(pair))
    assert "patching itself tells: --check" in str(unchecked)
    assert unchecked.estimate == view.estimate


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_a_common_beginning_is_read_once(part: PatchedPart, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = both("llama", executor)
    split = estimated(pair, part, **answers(pair))
    some = estimated(pair, part, split.estimate.positions[-2:], **answers(pair))
    monkeypatch.setattr(differentiation, "KEPT_BYTES", 0)  # which rules it out for the gradients
    whole = estimated(pair, part, **answers(pair))
    np.testing.assert_allclose(np.asarray(split), np.asarray(whole), atol=1e-4)
    assert some.estimate.positions == whole.estimate.positions[-2:]
    if part not in BY_HEAD:
        np.testing.assert_allclose(np.asarray(some), np.asarray(whole)[:, -2:], atol=1e-4)


def test_a_model_that_fills_gaps() -> None:
    pair = encoder()
    first, second = "the cat sat on [MASK]", "a cat sat on [MASK]"
    view = pair.model.attribution_patch(first, second, answer=5, against=6)
    mask = view.estimate.tokens[0].index("[MASK]")
    layers = pair.reference.bert.encoder.layer
    kept: dict[str, list[torch.Tensor]] = {first: [], second: []}
    leads = {}
    for text, values in kept.items():
        handles = [
            layer.register_forward_hook(lambda _, __, output, values=values: values.append(stream(output)))
            for layer in layers
        ]
        scores = pair.reference(torch.tensor([pair.model.read(text).ids])).logits[0, mask]
        leads[text] = scores[5] - scores[6]
        for handle in handles:
            handle.remove()
    gradients = torch.autograd.grad(leads[second], kept[second])
    whole = (leads[first] - leads[second]).item()
    for layer, gradient in enumerate(gradients):
        expected = ((kept[first][layer] - kept[second][layer]) * gradient).sum(-1)[0] / whole
        found = [view.at(layer, position) for position in view.estimate.positions]
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=5e-3, atol=5e-3)


def test_the_method_and_the_verb() -> None:
    pair = both("gpt2", "cpu")
    asked = answers(pair)
    view = pair.model.attribution_patch(FIRST, SECOND, "heads", **asked, raw=True)
    assert view == estimated(pair, "heads", **asked)
    place, _ = folder("gpt2", "causal")
    arguments = ["attribution-patch", "-m", str(place), "--raw", FIRST, SECOND, "--part", "heads", "--json"]
    answer = CliRunner().invoke(app, [*arguments, "--answer", f"#{asked['answer']}", "--against", f"#{asked['against']}"])
    assert answer.exit_code == 0, answer.output
    data = json.loads(answer.stdout)
    assert data["schema"] == "glassformer.attribution-patching/1"
    np.testing.assert_allclose(data["estimate"]["values"], np.asarray(view), atol=1e-4)
