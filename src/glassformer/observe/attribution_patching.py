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

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Feed, Want, common_prefix
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch, axes
from glassformer.observe.activations import Activations, to_numpy
from glassformer.observe.differentiation import Differentiation, ReadPrefix, Target
from glassformer.observe.patching import answer_tokens, lead_of_answer, patching
from glassformer.observe.protocols import Floats
from glassformer.observe.text_pair import BY_HEAD, TextPair, check_part
from glassformer.views.attribution_patching import AttributionPatching, EstimateCheck, EstimateMiss
from glassformer.views.patching import PatchedPart, Patching

MAX_BYTES = 2_000_000_000  # of the values that are compared


def attribution_patching(
    first: Activations,
    second: Activations,
    part: PatchedPart = "residual",
    positions: Sequence[int | str] | int | None = None,
    *,
    answer: int | str | None = None,
    against: int | str | None = None,
    check: bool = False,
    progress: Progress | None = None,
) -> AttributionPatching:
    """What patching the first text's values into the second's pass would recover, place by place.

    The arguments are those of `patching`. `check`: patch too, and compare.
    """
    check_part(part)
    pair = TextPair(first, second, positions)
    sites = pair.sites(part)
    if (size := 3 * first.cost(*sites.values()).bytes) > MAX_BYTES:
        raise InputError(f"the values and gradients of these places take {size / 1e9:.1f} GB. Take shorter texts.")
    start = min(*pair.positions, common_prefix(first.ids, second.ids)) if pair.causal else 0
    values, scores, prefix = _both_texts(pair, tuple(sites.values()), start)
    answers = answer_tokens(first.model, scores, answer, against)
    target, rival = (token.id for token in answers)
    clean, corrupted = lead_of_answer(answers, scores)
    position = len(second.ids) - 1 if pair.masks is None else pair.masks[1]
    gradients = _gradients(second, Target(position, target, rival), tuple(sites.values()), prefix)
    chosen = [position - start for position in pair.positions]
    cells = [
        _contributions(values[0][site] - values[1][site], gradients[site], chosen, part in BY_HEAD)
        for site in sites.values()
    ]
    columns = len(cells[0])
    estimate = Patching(
        first.model.name,
        part,
        (pair.text(first), pair.text(second)),
        (pair.token_texts(first), pair.token_texts(second)),
        answers,
        (clean, corrupted),
        tuple(sites),
        tuple(pair.positions),
        columns if part in BY_HEAD else 0,
        pair.heads // columns if part in ("key", "value") else 1,
        tuple(tuple(float(cell) for cell in row / (clean - corrupted)) for row in cells),
        (int(scores[0].argmax()), int(scores[1].argmax())),
        tuple(first.model.changes),
    )
    if not check:
        return AttributionPatching(estimate, None)
    true = patching(first, second, part, pair.positions, answer=target, against=rival, progress=progress)
    return AttributionPatching(estimate, compare_with_patching(estimate, true))


def compare_with_patching(estimate: Patching, true: Patching) -> EstimateCheck:
    """An estimate beside what patching gave at the same places."""
    estimated, patched = (np.asarray(view, np.float64) for view in (estimate, true))
    varies = estimated.std() > 0 and patched.std() > 0
    correlation = float(np.corrcoef(estimated.ravel(), patched.ravel())[0, 1]) if varies else None
    positions: Sequence[int | None] = [None] * estimate.heads if estimate.heads else estimate.positions
    misses = [
        EstimateMiss(layer, place, position, float(estimated[row, column]), float(patched[row, column]))
        for row, layer in enumerate(estimate.layers)
        for column, (place, position) in enumerate(zip(estimate.columns, positions, strict=True))
    ]
    misses.sort(key=lambda miss: -abs(miss.estimate - miss.patched))
    return EstimateCheck(true, correlation, float(np.abs(estimated - patched).mean()), tuple(misses))


def _both_texts(
    pair: TextPair, sites: Sequence[str], start: int
) -> tuple[list[Mapping[str, Floats]], list[Floats], ReadPrefix | None]:
    """The values of each text at the sites from a position on, its scores where the answer stands, and what comes before."""
    watch, texts = Watch(frozenset(sites)), (pair.first, pair.second)
    if pair.masks is not None:
        passes = [text.model.encoder_pass(text.ids, watch) for text in texts]
        scored = zip(pair.masks, passes, strict=True)
        scores = [scores[mask] for mask, (scores, _) in scored if scores is not None]
        return [values for _, values in passes], scores, None
    executor, prefix = pair.first.model.executor, None
    rows = [executor.open(pair.first.source)]
    try:
        if start:
            names = ReadPrefix.sites(pair.first.model.blueprint.blocks)
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
