"""Where each token went: the view beside the reference's router logits, and stepping inside a mixture of experts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from glassformer.changes import Change
from glassformer.cli.app import app
from glassformer.errors import InputError
from glassformer.views.experts import Experts
from glassformer.views.schema import schema
from tests.observe.models import TEXT, both
from tests.observe.test_inside import POSITION, levels

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


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(llama\) has no experts: each token goes through the same MLP"):
        both("llama").reading().experts()


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


def test_parts_add_up_to_the_logit() -> None:
    view = both("olmoe").reading().attribution()
    assert sum(part.value for part in view.contributions) == pytest.approx(view.score, abs=1e-3)
    assert {part.name for part in view.contributions} >= {"attention", "mlp", "embedding"}
