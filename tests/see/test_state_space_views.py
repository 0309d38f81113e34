"""Views of models whose blocks have one part each, some of them a state of Mamba-2's kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from tests.see.models import both

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the cat sat on the mat. the cat sat on the"
OTHER = TEXT.replace("cat", "dog")
ATTENDS, MIXED = (0, 2), (1, 3)  # the blocks of the tiny Nemotron-H that have heads, and those that have experts or an MLP


@pytest.fixture(scope="module", params=["plain", "cpu"])
def reading(request: pytest.FixtureRequest) -> Any:
    return both("nemotron_h", request.param).model.read(TEXT)


def test_a_pattern_has_what_passes_by_the_state(reading: Any) -> None:
    """Heads are their effective pattern times values; without writes only the skip is left, on the diagonal."""
    pattern, values, heads = (reading.at(f"blocks.0.attention.{part}") for part in ("pattern", "value", "heads"))
    assert np.allclose(pattern @ values, heads, atol=1e-5)
    skip = reading.model.weight("backbone.layers.0.mixer.D")
    unwritten = reading.model.changed({"blocks.0.attention.write": Change(scale=0.0)}).read(TEXT)
    assert np.allclose(unwritten.at("blocks.0.attention.pattern"), skip[:, None, None] * np.eye(len(reading)), atol=1e-6)
    assert np.allclose(unwritten.at("blocks.0.attention.heads"), skip[:, None, None] * values, atol=1e-5)


def test_a_changed_pattern_is_what_heads_are_made_of(reading: Any) -> None:
    values = reading.at("blocks.0.attention.value")
    changed = reading.model.changed({"blocks.0.attention.pattern": Change(scale=0.0, shift=np.eye(len(reading)))}).read(TEXT)
    assert np.allclose(changed.at("blocks.0.attention.heads"), values, atol=1e-5)


def test_inside_a_head_the_arithmetic_gives_the_engines_weight(reading: Any) -> None:
    pattern = reading.at("blocks.0.attention.pattern")
    for key in (0, 3, len(reading) - 1):
        seen = reading.inside(f"blocks.0.attention.heads.1.{key}")
        assert seen.steps[-1].value == pytest.approx(float(pattern[1, -1, key]), abs=1e-5)
    assert "passes by the state" in str(seen.steps)
    for block in range(4):
        kind = "attention" if block in ATTENDS else "mlp"
        for part in reading.inside(f"blocks.{block}.{kind}").parts:
            for number in (0, 1) if part.path and part.path.count(".") < 5 else ():
                seen = reading.inside(f"{part.path}.{number}")
                assert not [note for note in seen.notes if "rounded otherwise" in note], part.path


def test_blocks_without_heads_are_passed_over(reading: Any) -> None:
    maps = [reading.attention(layer, 1).weights for layer in ATTENDS]
    assert all(np.allclose(weights.sum(-1), 1, atol=1e-5) for weights in maps)
    mean = np.mean([reading.attention(layer).weights for layer in ATTENDS], 0)
    assert np.allclose(reading.attention().weights, mean, atol=1e-6)
    assert reading.attention(rollout=True).weights.sum(-1) == pytest.approx(1, abs=1e-4)
    assert {summary.layer for summary in reading.heads().summaries} == {*ATTENDS}
    assert reading.attention_maps().layers == 4
    with pytest.raises(InputError, match="layer 1"):
        reading.attention(1)
    with pytest.raises(InputError, match="layer 3"):
        reading.model.circuits.head(3, 0)


def test_a_score_is_the_sum_of_its_sources(reading: Any) -> None:
    attribution, graph = reading.attribution(), reading.graph(threshold=0.0)
    assert sum(part.value for part in attribution.contributions) == pytest.approx(attribution.score, abs=1e-3)
    assert abs(graph.rounding) < 1e-3 * max(1.0, abs(graph.score))


@pytest.mark.parametrize(
    ("part", "layers"), [("heads", ATTENDS), ("pattern", ATTENDS), ("attention", ATTENDS), ("mlp", MIXED)]
)
def test_a_part_is_patched_where_it_is(part: str, layers: tuple[int, int]) -> None:
    patching = both("nemotron_h").model.patch(TEXT, OTHER, part, answer=">", against="V")
    assert tuple(map(int, patching.layers)) == layers
    assert len(patching.values) == len(layers)
    assert np.abs(np.array(patching.values)).max() > 1e-3


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_mamba_2_alone_has_every_view_of_its_heads(executor: str) -> None:
    reading = both("mamba2", executor).model.read(TEXT)
    assert reading.lens().predictions[-1][-1].id == reading.trace(best=1).places[-1].candidates[0].id
    assert {summary.layer for summary in reading.heads().summaries} == {0, 1, 2}
    assert reading.attribution().contributions
    assert "keeps a state" in reading.attention(1, 1).note


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_a_state_beside_attention_has_every_view_of_its_own(executor: str) -> None:
    """Falcon-H1's blocks have two mixers: each has heads, a pattern and an update, and neither is taken for the other."""
    reading = both("falcon_h1", executor).model.read(TEXT)
    pattern, values, heads = (reading.at(f"blocks.1.recurrent.{part}") for part in ("pattern", "value", "heads"))
    assert np.allclose(pattern @ values, heads, atol=1e-5)
    shown = reading.attention(1, 5, kind="recurrent")
    assert np.allclose(shown.weights, np.abs(pattern[5]) / np.abs(pattern[5]).sum(-1, keepdims=True), atol=1e-6)
    assert "keeps a state" in shown.note
    assert np.array_equal(reading.attention(1, 1).weights, reading.at("blocks.1.attention.pattern")[1])
    assert reading.attention_maps().kinds == ("self", "recurrent")
    assert reading.attention_maps(kind="recurrent").heads == reading.heads(kind="recurrent").heads == 6
    attribution, graph = reading.attribution(), reading.graph(threshold=0.0)
    assert abs(next(part.value for part in attribution.contributions if part.name == "rounding")) < 1e-3
    assert [part.name for part in attribution.contributions if part.block == 1] == ["recurrent", "attention", "mlp"]
    for name, count in (("attention", 4), ("recurrent", 6)):
        of_heads = [part.value for part in attribution.heads if (part.name, part.block) == (name, 1)]
        (update,) = (part.value for part in attribution.contributions if (part.name, part.block) == (name, 1))
        assert len(of_heads) == count
        assert sum(of_heads) == pytest.approx(update, abs=1e-4)
    assert abs(graph.rounding) < 1e-3 * max(1.0, abs(graph.score))
    assert {"attention", "recurrent"} <= {node.name for node in graph.nodes}
    assert [part.name for part in reading.inside("blocks.1").parts if part.kind == "group"] == [
        "recurrent layer", "attention", "MLP",
    ]  # fmt: skip
    for key in (0, 3, len(reading) - 1):
        seen = reading.inside(f"blocks.1.recurrent.heads.1.{key}")
        assert seen.steps[-1].value == pytest.approx(float(pattern[1, -1, key]), abs=1e-5)
    for kind in ("recurrent", "attention", "mlp"):
        for part in reading.inside(f"blocks.1.{kind}").parts:
            seen = reading.inside(f"{part.path}.1") if part.path and part.path.count(".") < 5 else None
            assert seen is None or not [note for note in seen.notes if "rounded otherwise" in note], part.path


@pytest.mark.parametrize("part", ["recurrent", "recurrent_heads", "attention", "heads"])
def test_both_mixers_of_a_block_are_patched_each_by_itself(part: str) -> None:
    model = both("falcon_h1").model
    patching = model.patch(TEXT, OTHER, part, answer=">", against="V")
    assert len(patching.layers) == model.blueprint.blocks
    assert np.abs(np.array(patching.values)).max() > 1e-3


@pytest.mark.parametrize("executor", ["plain", "cpu"])
def test_a_silenced_state_leaves_the_block_its_attention(executor: str) -> None:
    model = both("falcon_h1", executor).model
    silent = model.changed({"blocks.1.recurrent.heads": Change(scale=0.0)}).read(TEXT)
    read = model.read(TEXT)
    assert not silent.at("blocks.1.recurrent.update").any()
    assert np.allclose(silent.at("blocks.1.attention.update"), read.at("blocks.1.attention.update"), atol=1e-6)
    whole = silent.at("blocks.0.residual") + silent.at("blocks.1.attention.update")
    assert np.allclose(silent.at("blocks.1.middle"), whole, atol=1e-5)
