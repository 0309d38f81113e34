"""Views of a model some of whose layers have no heads: LFM2's convolutions, beside layers that attend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.see.models import both

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the cat sat on the mat. the cat sat on the"
ATTENDS = 1  # of three layers


@pytest.fixture(scope="module", params=["plain", "cpu"])
def reading(request: pytest.FixtureRequest) -> Any:
    return both("lfm2", request.param).model.read(TEXT)


def test_attention_is_that_of_the_layers_that_attend(reading: Any) -> None:
    mean, own = reading.attention(), reading.attention(ATTENDS)
    assert np.allclose(mean.weights, own.weights)
    assert "left out: 2 layers (0, 2)" in mean.note
    assert "left out" not in own.note
    assert np.allclose(reading.attention(rollout=True).weights, 0.5 * own.weights + 0.5 * np.eye(len(reading)), atol=1e-6)


def test_heads_and_maps_leave_other_layers_blank(reading: Any) -> None:
    heads, maps = reading.heads(), reading.attention_maps()
    assert {summary.layer for summary in heads.summaries} == {ATTENDS}
    assert heads.layers == maps.layers == 3
    assert maps.maps[ATTENDS].any()
    assert not maps.maps[[0, 2]].any()
    assert "left out" in heads.note
    assert "left out" in maps.note
    assert not reading.attention_maps(first=2).maps.any()


def test_a_score_is_the_sum_of_its_sources(reading: Any) -> None:
    """A convolution is a source, like an MLP."""
    graph = reading.graph(threshold=0.0)
    assert abs(graph.rounding) < 1e-3 * max(1.0, abs(graph.score))
    assert {node.block for node in graph.nodes if node.name == "attention" and node.head is None} == {0, 2}
    attribution = reading.attribution()
    assert sum(part.value for part in attribution.contributions) == pytest.approx(attribution.score, abs=1e-3)
    assert {head.block for head in attribution.heads} == {ATTENDS}


def test_inside_a_convolution_the_arithmetic_gives_the_engines_numbers(reading: Any) -> None:
    for number in (0, 5):
        seen = reading.inside(f"blocks.0.attention.update.{number}")
        value = float(reading.at("blocks.0.attention.update")[-1, number])
        assert seen.steps[-1].value == pytest.approx(value, abs=1e-4)
    group = reading.inside("blocks.0.attention")
    for part in group.parts:
        for number in (0, 1) if part.path and part.path.count(".") < 5 else ():
            seen = reading.inside(f"{part.path}.{number}")
            assert not [note for note in seen.notes if "rounded otherwise" in note], part.path


@pytest.mark.parametrize(("part", "layers"), [("heads", ("1",)), ("pattern", ("1",)), ("attention", ("0", "1", "2"))])
def test_patching_shows_the_layers_that_have_a_part(part: str, layers: tuple[str, ...]) -> None:
    model = both("lfm2").model
    patching = model.patch(TEXT, TEXT.replace("cat", "dog"), part, answer=">", against="V")
    assert patching.layers == layers
    assert np.abs(np.array(patching.values)).max() > 1e-3


def test_paths_and_estimates_pass_by_layers_without_heads() -> None:
    model = both("lfm2").model
    paths = model.patch_path(TEXT, TEXT.replace("cat", "dog"), answer=">", against="V")
    assert {path.block for path in paths.paths} == {ATTENDS}
    estimate = model.attribution_patch(TEXT, TEXT.replace("cat", "dog"), answer=">", against="V")
    assert np.isfinite(estimate.numbers()).all()
