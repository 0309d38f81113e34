"""Identities that hold with every mechanism and on both executors, with post-norms, soft caps, sinks, biases and experts.

Each is exact in real numbers. What is allowed is what float32 loses in a sum, relative to the largest term.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from glassformer import Change
from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import MEASURED, axes
from glassformer.see.attention import AttentionKind, attending_layers, sink_sites, with_sink
from glassformer.see.attribution import Attribution, Contribution
from glassformer.see.reading import Reading
from tests.parity.configs import DECODERS, ENCODERS, PAIRS
from tests.see.models import EXECUTORS, both, encoder

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.every_mechanism]

ROUNDING = 1e-4  # of the largest term


@pytest.fixture(scope="module", params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=[*DECODERS, *PAIRS])
def reading(request: pytest.FixtureRequest, executor: str) -> Reading:
    found: Reading = both(request.param, executor).reading()
    return found


def near(value: float, *terms: float) -> Any:
    return pytest.approx(value, abs=ROUNDING * max(1.0, *map(abs, terms)))


def refused(reading: Reading, view: Callable[[], object]) -> bool:
    """Whether a model has several streams: then a view of what was added to one refuses it."""
    if not reading.model.blueprint.mixes_streams:
        return False
    with pytest.raises(SiteError, match=reading.model.blueprint.model_type):
        view()
    return True


def by_part(parts: tuple[Contribution, ...]) -> dict[tuple[str, int | None], float]:
    """The sum of what each part of each block added, its biases included."""
    sums: dict[tuple[str, int | None], float] = defaultdict(float)
    for part in parts:
        sums[part.name.removesuffix(" bias"), part.block] += part.value
    return sums


def test_the_parts_are_the_score_and_heads_with_biases_are_attentions_part(reading: Reading) -> None:
    if refused(reading, reading.attribution):
        return
    for view in (reading.attribution(), reading.attribution(-2, 3, 5), reading.attribution(1, centred=True)):
        terms = [part.value for part in (*view.contributions, *view.heads)]
        parts, heads = by_part(view.contributions), by_part(view.heads)
        assert sum(part.value for part in view.contributions) == near(view.score, *terms)
        assert parts["rounding", None] == near(0.0, *terms)
        kinds: dict[str, AttentionKind] = {"attention": "self", "cross": "cross", "recurrent": "recurrent"}
        layers = {name: attending_layers(reading.model.blueprint, kind) for name, kind in kinds.items()}
        assert {part for part in parts if part[1] in layers.get(part[0], ())} == set(heads)
        for part, value in heads.items():
            assert value == near(parts[part], *terms)


def head_share(view: Attribution, layer: int, head: int) -> float:
    (share,) = (part.value for part in view.heads if (part.name, part.block, part.head) == ("attention", layer, head))
    return share


def test_what_a_head_wrote_is_its_share_in_the_attribution(reading: Reading) -> None:
    attends = reading.model.blueprint.attention_patterns
    if refused(reading, lambda: reading.circuit(0, 1, best=2)):
        return
    for layer in range(reading.model.blueprint.blocks):
        if f"blocks.{layer}.attention.pattern" not in attends:
            continue  # it keeps a state, and has no circuits
        view = reading.circuit(layer, 1, best=2)
        place = view.positions[-1 - layer]
        for token in place.writes:
            found = reading.attribution(place.position, token.id, metric="logit")
            assert token.score == near(head_share(found, layer, 1), *(part.value for part in found.heads))


def test_a_row_of_a_pattern_and_its_sink_sum_to_one(reading: Reading) -> None:
    assert bool(sink_sites(reading.model.blueprint)) == (reading.model.config.model_type == "gpt_oss")
    sums_to_one(reading)


@pytest.mark.parametrize("family", ENCODERS)
def test_a_row_of_an_encoders_pattern_sums_to_one(family: str) -> None:
    sums_to_one(encoder(family, "base").reading())


def sums_to_one(reading: Reading) -> None:
    blueprint = reading.model.blueprint
    sinks = sink_sites(blueprint)
    for site, pattern in reading.values(*(s for s in blueprint.attention_patterns if s not in sinks)).items():
        np.testing.assert_allclose(pattern.sum(-1), 1, atol=ROUNDING, err_msg=site)
    kinds: tuple[AttentionKind, ...] = ("self", "cross", "encoder") if blueprint.encoder_blocks else ("self",)
    for kind in kinds:
        layers = attending_layers(blueprint, kind)
        maps = [
            reading.attention(layer, head, kind=kind) for layer, head in ((None, None), (layers[0], None), (layers[-1], 1))
        ]
        for view in maps if kind == "cross" else [*maps, reading.attention(kind=kind, rollout=True)]:
            assert (view.sink is None) == (not sinks)
            np.testing.assert_allclose(with_sink(view.weights, view.sink).sum(-1), 1, atol=ROUNDING)
        for summary in reading.heads(kind=kind).summaries:
            assert (summary.sink is None) == (not sinks)
            assert 0 <= summary.entropy <= np.log2(len(view.keys) + bool(sinks)) + ROUNDING


def test_the_lens_of_the_last_layer_is_the_scores(reading: Reading) -> None:
    if refused(reading, lambda: reading.lens([-1])):
        return
    view, trace = reading.lens([-1, 1]), reading.trace(best=1)
    for prediction, place in zip(view.predictions[-1], (trace.places[-1], trace.places[1]), strict=True):
        assert (prediction.id, prediction.rank) == (place.candidates[0].id, 1)
        assert prediction.probability == pytest.approx(place.candidates[0].probability, abs=ROUNDING)
        assert prediction.entropy == pytest.approx(place.entropy, abs=ROUNDING)
        assert prediction.divergence == pytest.approx(0.0, abs=ROUNDING)


def test_a_text_patched_with_itself_is_the_same(reading: Reading) -> None:
    """Each site of one block, and the stream, replaced by what was there."""
    model, sites = reading.model, reading.model.blueprint.sites
    scores = final_scores(reading)
    own = [site for site in sites if site.removeprefix("encoder.").startswith("blocks.1.") or "blocks" not in site]
    own = [site for site in own if site not in model.blueprint.site_names.derived and not site.endswith(MEASURED)]
    own = [site for site in own if {"length", "source"} & {*axes(site)}]  # a state is that of the last token
    for site, value in reading.values(*(site for site in own if site != "scores")).items():
        axis = "source" if "length" not in axes(site) else "length"
        positions = list(range(value.shape[axes(site)[1:].index(axis)]))
        changed = model.changed({site: Change(scale=0.0, shift=value, positions=positions)})
        patched = final_scores(Reading(changed, reading.ids, reading.source))
        np.testing.assert_allclose(patched, scores, atol=ROUNDING * np.abs(scores).max(), err_msg=site)


def final_scores(reading: Reading) -> np.ndarray:
    (chunk,) = reading.chunks(scored=True)
    assert chunk.scores is not None
    return chunk.scores


def test_entropy_surprisal_and_divergence_are_in_bits(reading: Reading) -> None:
    if refused(reading, lambda: reading.lens([-1])):
        return
    scores, trace, lens = final_scores(reading), reading.trace(best=1), reading.lens([-1])
    logs = np.stack([log_softmax(row) for row in scores]).astype(np.float64) / np.log(2)
    shares = 2.0**logs
    given = [-row[token] for row, token in zip(logs, reading.ids[1:], strict=False)]
    assert [place.surprisal for place in trace.places[:-1]] == pytest.approx(given, abs=ROUNDING)
    assert [place.entropy for place in trace.places] == pytest.approx(-(shares * logs).sum(-1), abs=ROUNDING)
    assert trace.surprisal == pytest.approx(np.mean(given), abs=ROUNDING)
    assert trace.loss == pytest.approx(np.mean(given) * np.log(2), abs=ROUNDING)
    for layer, site in enumerate(reading.stream.values()):
        (early,) = reading.model.unembed(reading.at(site)[-1:])
        divergence = (shares[-1] * (logs[-1] - log_softmax(early) / np.log(2))).sum()
        assert lens.predictions[layer][0].divergence == pytest.approx(divergence, abs=ROUNDING, rel=ROUNDING)
