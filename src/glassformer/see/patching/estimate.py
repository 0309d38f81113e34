"""Attribution patching: what patching would recover at every place, estimated at once by one backward pass.

A patch replaces the second text's value at a place by the first's. To first order, that moves the answer's lead by the
difference of the two values times the lead's gradient there, in the second text's pass (Nanda 2023, "Attribution patching";
Syed et al., https://arxiv.org/abs/2310.10348). So both texts are read once, the second is differentiated once, and every
place of every layer has its estimate. It is good where the model is nearly linear between the texts, and poor where it
saturates: `check` patches too, and says how far off it is.

The values are those of the model's executor, as in patching; only the gradients are PyTorch's. What comes before the first
difference is read once, for both texts, and is not differentiated.

Shapes: a site's value (length, hidden), or (heads, length, …), of the positions from the first difference on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Feed, Want, common_prefix
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch, axes
from glassformer.see.activations import Activations, to_numpy
from glassformer.see.metrics import Target
from glassformer.see.passes import encoder_pass
from glassformer.see.patching.compute import Cell, PairOutcome, PartPlaces, scored_pair
from glassformer.see.patching.pair import TextPair
from glassformer.see.patching.view import EstimateCheck, EstimateMiss, Patching
from glassformer.see.view import Floats

if TYPE_CHECKING:
    from glassformer.see.differentiation import ReadPrefix

MAX_BYTES = 2_000_000_000  # of the values that are compared


def estimate_patches(pair: TextPair, places: PartPlaces) -> PairOutcome[Cell]:
    """What the metric `recovered` would give at each place, were it patched."""
    sites = places.layers(pair)
    if (size := 3 * pair.first.cost(*sites.values()).bytes) > MAX_BYTES:
        raise InputError(f"the values and gradients of these places take {size / 1e9:.1f} GB. Take shorter texts.")
    shares_prefix = pair.causal and not pair.first.model.blueprint.state_size  # of keys and values alone
    start = min(*pair.positions, common_prefix(pair.first.ids, pair.second.ids)) if shares_prefix else 0
    values, logits, prefix = _both_texts(pair, tuple(sites.values()), start)
    scored = scored_pair(pair, logits)
    clean, corrupted = scored.leads
    position = len(pair.second.ids) - 1 if pair.masks is None else pair.masks[1]
    target = Target(position, scored.answer, scored.against)
    gradients = _gradients(pair.second, target, tuple(sites.values()), prefix)
    chosen = [position - start for position in pair.positions]
    estimates: dict[Cell, float] = {}
    for layer, site in sites.items():
        moved = _contributions(values[0][site] - values[1][site], gradients[site], chosen, places.by_head)
        estimates |= {(layer, column): value for column, value in enumerate((moved / (clean - corrupted)).tolist())}
    return PairOutcome(pair, scored, (1.0, 0.0), estimates)


def compare_with_patching(estimate: Patching, true: Patching) -> EstimateCheck:
    """An estimate beside what patching gave at the same places."""
    estimated, patched = (np.asarray(view, np.float64) for view in (estimate, true))
    varies = estimated.std() > 0 and patched.std() > 0
    correlation = float(np.corrcoef(estimated.ravel(), patched.ravel())[0, 1]) if varies else None
    misses = [
        EstimateMiss(guess.layer, guess.place, guess.position, guess.value, place.value)
        for guess, place in zip(estimate.places, true.places, strict=True)
    ]
    misses.sort(key=lambda miss: -abs(miss.estimate - miss.patched))
    return EstimateCheck(true, correlation, float(np.abs(estimated - patched).mean()), tuple(misses))


def _both_texts(
    pair: TextPair, sites: Sequence[str], start: int
) -> tuple[list[Mapping[str, Floats]], list[Floats], ReadPrefix | None]:
    """The values of each text at the sites from a position on, its logits where the answer is, and what comes before."""
    from glassformer.see.differentiation import ReadPrefix

    watch, texts = Watch(frozenset(sites)), (pair.first, pair.second)
    if pair.masks is not None:
        passes = [encoder_pass(text.model, text.ids, watch) for text in texts]
        masked = zip(pair.masks, passes, strict=True)
        return [values for _, values in passes], [row[mask] for mask, (row, _) in masked if row is not None], None
    executor, prefix = pair.first.model.executor, None
    rows = [executor.open(pair.first.source)]
    try:
        if start:
            names = ReadPrefix.sites(pair.first.model.blueprint)
            ids, watch_prefix = pair.first.ids, Watch(frozenset(names))
            feed = Feed(rows[0], ids[:start], Want.NONE, watch=watch_prefix, text_length=len(ids))
            (output,) = executor.run([feed])
            prefix = ReadPrefix(start, {name: to_numpy(output.sites[name])[0] for name in names})
        rows.append(executor.fork(rows[0]) if start else executor.open(pair.second.source))
        feeds = [Feed(row, text.ids[start:], watch=watch) for row, text in zip(rows, texts, strict=True)]
        outputs = executor.run(feeds)
        values: list[Mapping[str, Floats]] = [
            {site: to_numpy(output.sites[site])[0] for site in sites} for output in outputs
        ]
        return values, [output.host().copy() for output in outputs], prefix
    finally:
        for row in rows:
            executor.close(row)


def _gradients(text: Activations, target: Target, sites: Sequence[str], prefix: ReadPrefix | None) -> dict[str, Floats]:
    """The target's gradient at the sites, after the prefix."""
    from glassformer.see.differentiation import Differentiation

    whole = Differentiation(text)
    if prefix is not None and not whole.recomputes():  # what is computed twice has no cache
        return Differentiation(text, prefix).site_gradients(target, sites)
    start = 0 if prefix is None else prefix.length
    gradients = whole.site_gradients(target, sites)
    return {
        site: np.moveaxis(np.moveaxis(value, _length(site), 0)[start:], 0, _length(site))
        for site, value in gradients.items()
    }


def _length(site: str) -> int:
    """Which axis of a site's value are the positions, without its batch."""
    names = axes(site)[1:]
    return names.index("length" if "length" in names else "source")


def _contributions(difference: Floats, gradient: Floats, positions: Sequence[int], by_head: bool) -> npt.NDArray[np.float64]:
    """What each place adds to the lead: of each position, or of each head over all positions."""
    products = difference.astype(np.float64) * gradient
    if by_head:
        heads: npt.NDArray[np.float64] = products[:, positions].sum((1, 2))
        return heads
    places: npt.NDArray[np.float64] = products[positions].sum(1)
    return places
