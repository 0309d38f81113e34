"""Where each token went: the view beside the reference's router logits, and stepping inside a mixture of experts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from glassformer.cli.app import app
from glassformer.ground.changes import Change, ChangeSequence
from glassformer.ground.errors import SiteError
from glassformer.page.document import Table
from glassformer.see.activation_rows import activation_rows
from glassformer.see.experts import Experts
from glassformer.see.schema import schema
from glassformer.steering.vector import token_site
from tests.see.models import TEXT, both
from tests.see.test_inside import POSITION, levels
from tests.see.test_reading import fits, valid

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_choices_are_the_references(executor: str) -> None:
    models = both("qwen3_moe", executor)
    reading = models.reading()
    view = reading.experts()
    with torch.no_grad():
        logits = models.reference(torch.tensor([reading.ids]), output_router_logits=True).router_logits
    assert [layer.layer for layer in view.layers] == [0, 2]  # the second has no experts
    assert (view.experts, view.chosen) == (5, 2)
    for layer, scores in zip(view.layers, logits, strict=True):
        best, experts = scores.softmax(-1).topk(2)
        best = best / best.sum(-1, keepdim=True)
        assert [[choice.expert for choice in token] for token in layer.tokens] == experts.tolist()
        shares = np.array([[choice.share for choice in token] for token in layer.tokens])
        assert np.abs(shares - best.numpy()).max() < 1e-5
        chosen = np.array([[choice.score for choice in token] for token in layer.tokens])
        assert np.abs(chosen - scores.gather(-1, experts).numpy()).max() < 1e-4
        assert [load.tokens for load in layer.loads] == experts.flatten().bincount(minlength=5).tolist()
        assert sum(load.share for load in layer.loads) == pytest.approx(1.0)


def test_data_and_pages() -> None:
    view = both("qwen3_moe").reading().experts()
    jsonschema.validate(json.loads(json.dumps(view.to_dict())), schema(Experts))
    assert "2 of 5 experts" in str(view)
    first = view.layers[0].tokens[-1][0]
    assert f"{first.expert}: {first.share:.0%}"[:4] in str(view)
    assert "goes to" in view._repr_html_()
    assert repr(view) == f"Experts(2 layers × {len(view.tokens)} tokens: 2 of 5 experts)"


def test_a_change_redirects_and_switches_off() -> None:
    model = both("qwen3_moe").model
    favour = np.zeros(5, np.float32)
    favour[3] = 50.0
    redirected = model.changed({"blocks.2.mlp.router": Change(shift=favour)}).read(TEXT).experts()
    assert {token[0].expert for token in redirected.layers[1].tokens} == {3}
    off = model.changed({"blocks.0.mlp.experts": Change(scale=0.0)}).read(TEXT).experts()
    assert not any(off.layers[0].tokens)
    assert "none" in str(off)
    assert "-1" in str(replace(off, layers=off.layers[:1]))


def test_the_verb() -> None:
    folder = str(both("qwen3_moe").model.opened.path)
    result = CliRunner().invoke(app, ["experts", "-m", folder, "--raw", TEXT, "--json"])
    assert json.loads(result.output)["schema"] == "glassformer.experts/1"


@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "gpt_oss"])
def test_each_numbers_arithmetic_ends_at_the_engines_number(family: str) -> None:
    """Blocks 1 and 2: where one has no experts, the other does."""
    reading: Any = both(family).reading()
    compared = set[str]()
    paths = [view.path for view in levels(reading)]
    paths += [f"blocks.2.mlp.{path}" for path in ("router.1", "experts.0", "experts.3", "hidden.5", "hidden.50", "update.7")]
    for path in paths:
        view = reading.inside(path, POSITION)
        if view.result is not None:
            compared.add(path)
            assert view.steps[-1].value == pytest.approx(view.result, abs=1e-4), path
            assert not any("engine" in note for note in view.notes), path
    assert len(compared) > 20
    assert {"blocks.2.mlp.hidden.50", "blocks.2.mlp.update.7", "blocks.2.mlp.experts.3"} <= compared


def test_a_heads_scores_and_its_sink_become_the_attention_pattern() -> None:
    reading: Any = both("gpt_oss").reading()
    view = reading.inside("blocks.1.attention.heads.0.2", POSITION)
    assert any("sink" in step.name for step in view.steps)
    assert float(reading.at("blocks.1.attention.pattern")[0, POSITION].sum()) < 0.999


SLOTS = r"'blocks.0.mlp.hidden' has the neurons of each token's chosen experts side by side, .* Take 'blocks.0.mlp.update'"


@pytest.mark.parametrize("change", [
    Change(scale=0.0, neurons=[17]), Change(onto=np.ones(72, np.float32)), Change(away_from=np.ones(72, np.float32)),
    Change(shift=np.ones(72, np.float32)), ChangeSequence(changes=(Change(), Change(scale=0.0, neurons=[1]))),
])  # fmt: skip
def test_a_number_that_is_another_experts_neuron_at_each_token_cannot_be_changed(change: Change) -> None:
    model = both("qwen3_moe").model
    for pattern in ("blocks.0.mlp.hidden", "blocks.*.mlp.hidden"):
        with pytest.raises(SiteError, match=SLOTS):
            model.changed({pattern: change})
    model.changed({"blocks.1.mlp.hidden": Change(scale=0.0, neurons=[17])})  # which has no experts
    model.changed({"blocks.0.mlp.hidden": Change(scale=0.0)})  # all of them


def test_statistics_probes_features_and_steering_take_no_numbers_of_slots(tmp_path: Path) -> None:
    model, site = both("qwen3_moe").model, "blocks.0.mlp.hidden"
    many = model.read_many([TEXT, "a dog", TEXT, "a dog"])
    width = model.blueprint.sites[site][-1]
    for refused in (
        lambda: many.statistics(site),
        lambda: many.probe(["yes", "no"] * 2, site),
        lambda: activation_rows(model, TEXT, site),
        lambda: token_site(model.blueprint, site, model.name),
    ):
        with pytest.raises(SiteError, match=SLOTS):
            refused()
    assert many.record(site, folder=tmp_path / "recorded").index.sites[site] == (width,)


def test_a_neuron_inside_a_level_is_named_with_its_expert() -> None:
    reading: Any = both("gpt_oss").reading()
    op = next(op for op in reading.model.blueprint.ops if op.site == "blocks.1.mlp.hidden")
    size = op.shape[-1] // op.options["chosen"]
    first, second = np.flatnonzero(reading.at("blocks.1.mlp.experts")[POSITION]).tolist()
    assert reading.inside("blocks.1.mlp.hidden.5", POSITION).title == f"expert {first}, neuron 5"
    assert reading.inside(f"blocks.1.mlp.hidden.{size + 7}", POSITION).title == f"expert {second}, neuron 7"
    assert all(number.label.startswith("expert ") for number in reading.inside("blocks.1.mlp.hidden", POSITION).numbers)


def test_the_sink_is_a_column_of_its_own() -> None:
    reading: Any = both("gpt_oss").reading()
    pattern = reading.at("blocks.1.attention.pattern").astype(np.float64)
    sink = 1 - pattern.sum(-1)
    view = reading.attention(1, 0)
    assert np.allclose(view.sink, sink[0], atol=1e-6)
    assert "(sink)" in fits(view)
    row = view.of(POSITION)
    assert "(sink)" in fits(row)
    assert row.sink == pytest.approx(sink[0, POSITION])
    bars = [row.cells[-1] for part in row.page().body if isinstance(part, Table) for row in part.rows]
    assert max(bars) < 1  # a share of 1, not of the row's largest
    whole = np.concatenate((pattern, sink[..., None]), -1)[0, 1:]
    entropy = -(whole * np.log2(np.maximum(whole, 1e-12))).sum(-1).mean()
    heads = reading.heads()
    (summary,) = (each for each in heads.summaries if (each.layer, each.head) == (1, 0))
    assert summary.entropy == pytest.approx(entropy, abs=1e-4)
    assert summary.sink == pytest.approx(sink[0, 1:].mean(), abs=1e-5)
    assert "heads that attend most to the sink" in fits(heads)
    maps = reading.attention_maps()
    sinks = np.frombuffer(maps.sinks, np.uint8).reshape(maps.maps.shape[:-1])
    assert np.abs(sinks[1, 0] / 255 - sink[0]).max() <= 0.5 / 255 + 1e-6
    place = reading.circuit(1, 0).positions[POSITION]
    assert place.sink == pytest.approx(sink[0, POSITION], abs=1e-6)
    level = reading.inside("blocks.1.attention.heads.0", POSITION)
    assert level.sink.weight + sum(key.weight for key in level.keys) == pytest.approx(1, abs=1e-5)
    assert level.sink.score == pytest.approx(float(reading.model.weight("model.layers.1.self_attn.sinks")[0]))
    assert "(sink)" in fits(level)
    assert reading.inside("blocks.1.attention", POSITION).heads[0].sink == pytest.approx(sink[0, POSITION], abs=1e-6)
    for shown in (view, row, heads, maps, level):
        valid(shown)


def test_parts_add_up_to_the_logit() -> None:
    view = both("olmoe").reading().attribution()
    assert sum(part.value for part in view.contributions) == pytest.approx(view.score, abs=1e-3)
    assert {part.name for part in view.contributions} >= {"attention", "mlp", "embedding"}
