"""Two executors fed the same rows, and how far they are apart at every site. Needs no torch.

The first is what is right (`plain`, which is made of readable families); the other is compared with it. Rows of different
lengths go through in one pass, then grow by single tokens, then by single tokens beside whole chunks: whatever a driver may
ask of an executor. Every site of every pass is compared, so that what differs is named where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Executor, Feed, Scores, Want
from glassformer.errors import InputError
from glassformer.sites import Watch, every
from glassformer.views.verification import Difference, Verdict

Values = npt.NDArray[np.float64]
CHUNK = 12  # tokens that are fed together at the end


# How far an engine may be off, by what it rounds the inputs of packed weights to and by what it keeps keys and values in:
# five times what SmolLM2's 30 blocks are off where they are worst, so that rounding passes and a wrong number, which is off
# by about one, does not. Floats are only summed in another order.
FLOATS = 1e-4
ACTIVATIONS = {"q14": 1e-2, "q8": 5e-1}
CACHES = {"f32": 0.0, "f16": 1e-2, "bf16": 8e-2, "q8": 4e-1}


def verify(
    one: Executor, other: Executor, prompts: Sequence[Sequence[int]], blocks: int, encoder: int = 0,
    sources: Sequence[Sequence[int]] | None = None,
) -> Verdict:  # fmt: skip
    """Compare an executor with one that is right, on prompts of token ids; `sources`: what an encoder reads for each.

    `blocks` and `encoder` count the model's blocks, as its blueprint does.
    """
    (verdict,) = verify_all(one, [other], prompts, blocks, encoder, sources)
    return verdict


def verify_all(
    one: Executor, others: Sequence[Executor], prompts: Sequence[Sequence[int]], blocks: int, encoder: int = 0,
    sources: Sequence[Sequence[int]] | None = None,
) -> list[Verdict]:  # fmt: skip
    """The same for several executors, so that what is right need be computed only once."""
    if not prompts or not all(prompts):
        raise InputError("there is nothing to compare executors on. Give at least one prompt, each of at least one token.")
    watch = Watch(frozenset({"*"})).checked(blocks, encoder)
    openings: list[tuple[Sequence[int], ...]] = [(source,) for source in sources] if sources else [() for _ in prompts]
    held = [(executor, [executor.open(*given) for given in openings]) for executor in (one, *others)]
    tallies = [Tally() for _ in others]
    fed: dict[int, list[int]] = {at: list(prompt) for at, prompt in enumerate(prompts)}
    try:
        for turn in range(3):
            right, *found = (
                executor.run([Feed(rows[at], ids, Want.ALL, watch=watch) for at, ids in fed.items()])
                for executor, rows in held
            )
            for tally, scores in zip(tallies, found, strict=True):
                tally.add(fed, right, scores)
            fed = {at: _next(prompts[at], scores, turn, at) for at, scores in zip(fed, right, strict=True)}
            fed = {at: ids[: one.context - held[0][1][at].length] for at, ids in fed.items()}
            fed = {at: ids for at, ids in fed.items() if ids}
            if not fed:
                break
    finally:
        for executor, rows in held:
            for row in rows:
                executor.close(row)
    return [tally.verdict(every(blocks, encoder)) for tally in tallies]


def bound(packed: bool, cache: str, activations: str = "q14") -> float:
    """How far an engine may be off from the plain executor in float32."""
    return max(ACTIVATIONS[activations] if packed else FLOATS, CACHES[cache])


def _next(prompt: Sequence[int], scores: Scores, turn: int, row: int) -> list[int]:
    """What a row is fed after its prompt: the best token; then that and a chunk, or alone, in turns."""
    chunk = prompt[: CHUNK - 1] if turn and row % 2 == 0 else []
    return [int(scores.host().argmax()), *chunk]


class Tally:
    """Differences, as they are found."""

    def __init__(self) -> None:
        self._sites: dict[str, Difference] = {}
        self._agreed: list[bool] = []
        self._divergences: list[float] = []

    def add(self, fed: Mapping[int, Sequence[int]], right: Sequence[Scores], found: Sequence[Scores]) -> None:
        """What two executors made of one pass."""
        for ids, one, other in zip(fed.values(), right, found, strict=True):
            for index in range(len(ids)):
                mine, yours = one.host(index), other.host(index)
                self._agreed.append(int(mine.argmax()) == int(yours.argmax()))
                self._divergences.append(divergence(mine, yours))
            for site in {*one.sites, *other.sites}:
                apart = difference(site, one.sites, other.sites)
                self._sites[site] = apart.joined(self._sites.get(site, apart))

    def verdict(self, order: Sequence[str]) -> Verdict:
        sites = tuple(self._sites[site] for site in order if site in self._sites)
        apart = self._divergences
        return Verdict(sites, len(apart), sum(self._agreed) / len(apart), sum(apart) / len(apart), max(apart))


def difference(site: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Difference:
    """How far apart two executors' values of a site are; infinitely, if one lacks it or has it in another shape."""
    if site not in one or site not in other or tuple(one[site].shape) != tuple(other[site].shape):
        return Difference(site, math.inf, math.inf)
    value, apart = _values(one[site]), _values(other[site]) - _values(one[site])
    size, error = (float(np.sqrt(np.square(each).mean())) for each in (value, apart))
    return Difference(site, _over(error, size), _over(float(np.abs(apart).max()), float(np.abs(value).max())))


def _values(given: Any) -> Values:
    """A torch tensor's values, or an array's."""
    found: Values = np.asarray(given.double().cpu() if hasattr(given, "cpu") else given, np.float64)
    return found


def _over(part: float, whole: float) -> float:
    """A share; what is no number counts as infinitely far off."""
    if part == 0:
        return 0.0
    return part / whole if whole > 0 and math.isfinite(part) else math.inf


def divergence(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    """How far the second's probabilities are from the first's: Kullback–Leibler, in nats."""
    mine, yours = _logarithms(one), _logarithms(other)
    found = float((np.exp(mine) * (mine - yours)).sum())
    return max(found, 0.0) if math.isfinite(found) else math.inf


def _logarithms(scores: npt.NDArray[np.float32]) -> Values:
    shifted = scores.astype(np.float64) - scores.max()
    found: Values = shifted - np.log(np.exp(shifted).sum())
    return found
