"""Two executors fed the same rows, and how far they differ at every site. Needs no torch.

The first is the reference (`plain`, which is made of readable families); the others are compared with it. Ragged rows go
through in one pass, then grow by single tokens, then by single tokens and whole chunks together: whatever a driver may ask
of an executor. Every site of every pass is compared, so that a difference is named where it begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine.protocol import Executor, Feed, Logits, Want
from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch, all_sites
from glassformer.views.verification import SiteDifference, Verdict

CHUNK = 12  # tokens that are fed together at the end


# How far an engine may be off, by what it rounds the inputs of quantized weights to and by the dtype of its KV cache: five
# times the worst error in SmolLM2's 30 blocks, so that rounding passes and a wrong number, which is off by about one, does
# not. Floats are only summed in another order.
FLOATS = 1e-4
ACTIVATIONS = {"q14": 1e-2, "mixed": 2e-1, "q8": 5e-1}
CACHES = {"f32": 0.0, "f16": 1e-2, "bf16": 8e-2, "q8": 4e-1}


def verify(
    reference: Executor, executor: Executor, prompts: Sequence[Sequence[int]], blocks: int, encoder: int = 0,
    sources: Sequence[Sequence[int]] | None = None, routed: tuple[int, ...] = (),
) -> Verdict:  # fmt: skip
    """Compare an executor with a reference, on prompts of token ids; `sources`: what an encoder reads for each.

    `blocks` and `encoder` count the model's blocks, and `routed` names those that have experts, as its blueprint does.
    """
    (verdict,) = verify_all(reference, [executor], prompts, blocks, encoder, sources, routed)
    return verdict


def verify_all(
    reference: Executor, executors: Sequence[Executor], prompts: Sequence[Sequence[int]], blocks: int, encoder: int = 0,
    sources: Sequence[Sequence[int]] | None = None, routed: tuple[int, ...] = (),
) -> list[Verdict]:  # fmt: skip
    """The same for several executors, so that the reference need run only once."""
    if not prompts or not all(prompts):
        raise InputError("there is nothing to compare executors on. Give at least one prompt, each of at least one token.")
    watch = Watch(frozenset({"*"})).expanded(blocks, encoder, routed)
    openings: list[tuple[Sequence[int], ...]] = [(source,) for source in sources] if sources else [() for _ in prompts]
    opened = [(executor, [executor.open(*source) for source in openings]) for executor in (reference, *executors)]
    reference_rows = opened[0][1]
    tallies = [Tally() for _ in executors]
    ids_by_row: dict[int, list[int]] = {at: list(prompt) for at, prompt in enumerate(prompts)}
    try:
        for turn in range(3):
            expected, *outputs = (
                executor.run([Feed(rows[at], ids, Want.ALL, watch=watch) for at, ids in ids_by_row.items()])
                for executor, rows in opened
            )
            for tally, scores in zip(tallies, outputs, strict=True):
                tally.add(expected, scores, [len(ids) for ids in ids_by_row.values()])
            ids_by_row = {
                at: _next_ids(prompts[at], scores, turn, at)[: reference.context - reference_rows[at].length]
                for at, scores in zip(ids_by_row, expected, strict=True)
            }
            ids_by_row = {at: ids for at, ids in ids_by_row.items() if ids}
            if not ids_by_row:
                break
    finally:
        for executor, rows in opened:
            for row in rows:
                executor.close(row)
    return [tally.verdict(all_sites(blocks, encoder, routed)) for tally in tallies]


def tolerance(packed: bool, cache: str, activations: str = "q14") -> float:
    """How far an engine may be off from the plain executor in float32."""
    return max(ACTIVATIONS[activations] if packed else FLOATS, CACHES[cache])


def gpu_tolerance(kind: str, cache: str) -> float:
    """How far the GPU engine may be off; inputs are rounded to the dtype of the weights that they are multiplied with."""
    return FLOATS if (kind, cache) == ("F32", "f32") else CACHES["bf16"]


def _next_ids(prompt: Sequence[int], scores: Logits, turn: int, row: int) -> list[int]:
    """What a row is fed after its prompt: the best token; the next time, in every other row, a chunk after it."""
    chunk = prompt[: CHUNK - 1] if turn and row % 2 == 0 else []
    return [int(scores.host().argmax()), *chunk]


class Tally:
    """Sums up differences over passes."""

    def __init__(self) -> None:
        self._sites: dict[str, SiteDifference] = {}
        self._agreed: list[bool] = []
        self._divergences: list[float] = []

    def add(self, expected: Sequence[Logits], outputs: Sequence[Logits], lengths: Sequence[int]) -> None:
        """The outputs of two executors for one pass over rows of these lengths."""
        for reference, output, length in zip(expected, outputs, lengths, strict=True):
            for index in range(length):
                scores, other = reference.host(index), output.host(index)
                self._agreed.append(int(scores.argmax()) == int(other.argmax()))
                self._divergences.append(kl_divergence(log_softmax(scores), log_softmax(other)))
            for site in {*reference.sites, *output.sites}:
                error = difference(site, reference.sites, output.sites)
                self._sites[site] = error.worst_of(self._sites.get(site, error))

    def verdict(self, order: Sequence[str]) -> Verdict:
        sites = tuple(self._sites[site] for site in order if site in self._sites)
        divergences = self._divergences
        count = len(divergences)
        return Verdict(sites, count, sum(self._agreed) / count, sum(divergences) / count, max(divergences))


def difference(site: str, reference: Mapping[str, Any], output: Mapping[str, Any]) -> SiteDifference:
    """How far two executors' values of a site differ; infinitely, if one lacks it or has it in another shape."""
    if site not in reference or site not in output or tuple(reference[site].shape) != tuple(output[site].shape):
        return SiteDifference(site, math.inf, math.inf)
    expected = _to_float64(reference[site])
    error = _to_float64(output[site]) - expected
    means = (float(np.sqrt(np.square(values).mean())) for values in (error, expected))
    largest = (float(np.abs(values).max()) for values in (error, expected))
    return SiteDifference(site, _ratio(*means), _ratio(*largest))


def _to_float64(value: Any) -> npt.NDArray[np.float64]:
    """A torch tensor's values, or an array's."""
    return np.asarray(value.double().cpu() if hasattr(value, "cpu") else value, np.float64)


def _ratio(error: float, size: float) -> float:
    """An error over a size; what is no number counts as infinitely large."""
    if error == 0:
        return 0.0
    return error / size if size > 0 and math.isfinite(error) else math.inf
