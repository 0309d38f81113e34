"""Views of a model whose layers keep a state, beside layers that attend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer.ground.errors import InputError
from glassformer.see.attention import attention_maps
from tests.see.models import both

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the cat sat on the mat. the cat sat on the"
KINDS = ("query", "key", "value", "heads", "pattern", "attention", "mlp", "residual")


@pytest.fixture(scope="module", params=["plain", "cpu"])
def reading(request: pytest.FixtureRequest) -> Any:
    return both("qwen3_5_text", request.param).model.read(TEXT)


def test_heads_are_their_effective_pattern_times_values(reading: Any) -> None:
    pattern, values, heads = (reading.at(f"blocks.0.attention.{part}") for part in ("pattern", "value", "heads"))
    assert np.allclose(pattern @ values, heads, atol=1e-5)
    assert (pattern < 0).any()
    assert not np.triu(pattern[0], 1).any()


def test_inside_a_head_the_arithmetic_gives_the_engines_weight(reading: Any) -> None:
    """Each key's weight, and each number on the way to and from a state."""
    pattern = reading.at("blocks.0.attention.pattern")
    for key in (0, 3, len(reading) - 1):
        seen = reading.inside(f"blocks.0.attention.heads.1.{key}")
        assert seen.steps[-1].value == pytest.approx(float(pattern[1, -1, key]), abs=1e-5)
        assert seen.result == pytest.approx(seen.steps[-1].value, abs=1e-4)
    group = reading.inside("blocks.0.attention")
    assert "what is kept of the state" in str(reading.inside("blocks.0.attention.decay.1").steps)
    for part in group.parts:
        for number in (0, 1) if part.path and part.path.count(".") < 5 else ():
            seen = reading.inside(f"{part.path}.{number}")
            assert not [note for note in seen.notes if "rounded otherwise" in note], part.path


def test_attention_shows_shares_that_sum_to_one(reading: Any) -> None:
    for layer in range(3):
        shown = reading.attention(layer, 1)
        assert np.allclose(shown.weights.sum(-1), 1, atol=1e-5)
        assert ("keeps a state" in shown.note) == (layer != 1)
    pattern = np.abs(reading.at("blocks.2.attention.pattern")[1])
    assert np.allclose(reading.attention(2, 1).weights, pattern / pattern.sum(-1, keepdims=True), atol=1e-5)
    assert reading.attention(rollout=True).weights.sum(-1) == pytest.approx(1, abs=1e-4)
    assert reading.heads().layers == 3
    assert all("keeps a state" in view.note for view in (reading.heads(), attention_maps(reading), reading.attention()))
    with pytest.raises(InputError, match="no head 9"):
        reading.attention(0, 9)


def test_a_score_is_the_sum_of_its_sources(reading: Any) -> None:
    """The direct path, and the graph, in which what a state holds is a source: its values are no linear map."""
    graph = reading.graph(threshold=0.0)
    assert abs(graph.rounding) < 1e-3 * max(1.0, abs(graph.score))
    assert {node.block for node in graph.nodes if node.followed and node.name == "attention"} == {1}
    attribution = reading.attribution()
    assert sum(part.value for part in attribution.contributions) == pytest.approx(attribution.score, abs=1e-3)
    heads, updates = attribution.heads, [part for part in attribution.contributions if part.name == "attention"]
    assert sum(head.value for head in heads) == pytest.approx(sum(update.value for update in updates), abs=1e-3)


@pytest.mark.parametrize("part", KINDS)
def test_every_part_of_a_recurrent_layer_can_be_patched(part: str) -> None:
    model = both("qwen3_5_text").model
    patching = model.patch(TEXT, TEXT.replace("cat", "dog"), part, answer=">", against="V")
    assert np.abs(np.array(patching.values)).max() > 1e-3
    assert len(patching.values) == (4 if part == "residual" else 3)


def test_an_estimate_needs_no_keys_of_a_state() -> None:
    model = both("qwen3_5_text").model
    estimate = model.attribution_patch(TEXT, TEXT.replace("cat", "dog"), answer=">", against="V")
    assert np.isfinite(estimate.numbers()).all()


def test_circuits_are_those_of_layers_that_attend() -> None:
    model = both("qwen3_5_text").model
    assert model.circuits.head(1, 0).head == 0
    with pytest.raises(InputError, match="layer 0 keeps"):
        model.circuits.head(0, 1)
    with pytest.raises(InputError, match="comes before"):
        model.circuits.composition()


def test_a_state_that_is_emptied_forgets_the_text() -> None:
    """What is changed after a prompt shows in the next token, and the tokens of the prompt are as they were."""
    model = both("qwen3_5_text").model
    emptied = model.changed({"blocks.*.attention.state": glassformer.Change(scale=0)})
    plain, changed = (one.read(TEXT) for one in (model, emptied))
    assert np.array_equal(plain.at("final"), changed.at("final"))
    assert not changed.at("blocks.0.attention.state").any()
    texts = ["".join(one.stream(TEXT, raw=True, max_new_tokens=8, temperature=0)) for one in (model, emptied)]
    assert texts[0] != texts[1]
