"""Tokens that an executor chose on its device, as the steps that a policy would have made of the same logits.

What is said of the steps is computed for all of them at once, from the records of the choices.

Shapes: as in `ChoiceRecords`; a waterfall's scores are (stages, candidates).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glassformer.decoding.policy import CHOICE_RULES, Policy, Step
from glassformer.decoding.shortlist import Ids, Shortlist
from glassformer.decoding.waterfall import MODEL, Waterfall
from glassformer.engine.protocol import NOT_CHOSEN, ChoiceRecords, ChosenTokens, Draws
from glassformer.ground.candidates import Candidates
from glassformer.ground.sites import axes

STAGES = (MODEL, *CHOICE_RULES)  # the columns of a record


class StepEvidence(NamedTuple):
    """What a step carries beside its token."""

    candidates: Candidates | None = None
    logprob: float | None = None
    entropy: float | None = None
    waterfall: Waterfall | None = None


@dataclass
class DeviceTokens:
    """Tokens of a text that the executor has chosen, and that its policy has not taken yet."""

    policy: Policy
    chosen: ChosenTokens
    draws: Draws
    length: int  # of the row, before the token that the next of them follows
    taken: int = 0
    _explained: list[StepEvidence] | None = None

    @property
    def left(self) -> int:
        return len(self.chosen.ids) - self.taken

    def take(self) -> Step | None:
        """The next of them as the policy's step; None where the executor could not choose."""
        index, records, sites, policy = self.taken, self.chosen.records, self.chosen.sites, self.policy
        token = self.chosen.ids[index]
        if token == NOT_CHOSEN:
            return None
        self.length, self.taken = self.length + 1, index + 1
        draw, gap = None, 0.0
        if records is not None and policy.settings.do_sample:
            draw, gap = float(self.draws[index]), float(records.best[index] - records.chosen[index])
            policy.history.surprisals.append(-math.log2(records.shares[index]))
        step = policy.accept(token, draw, gap)
        if self.chosen.logits is not None and policy.detail.depth:
            step = policy.explain(step, [Shortlist(self.chosen.logits[index])])
        elif policy.detail.depth:
            step = Step(token, step.finish, draw, False, *self._explanations[index])
        return replace(step, sites=at_position(sites, index)) if sites else step

    @property
    def _explanations(self) -> list[StepEvidence]:
        """Of all tokens, computed at once."""
        if self._explained is None:
            ids = [token for token in self.chosen.ids if token != NOT_CHOSEN]
            assert self.chosen.records is not None
            self._explained = list(explain(self.policy, ids, self.chosen.records))
        return self._explained


def at_position(sites: Mapping[str, Any], position: int) -> dict[str, Any] | None:
    """What was read at each site, (1, …), at one position of a pass; what belongs to no position as a whole."""
    values = {}
    for site, value in sites.items():
        names = axes(site)
        axis = names.index("length") if "length" in names else None
        values[site] = value[0] if axis is None else value[(0, *[slice(None)] * (axis - 1), position)]
    return values or None


def explain(policy: Policy, ids: Sequence[int], records: ChoiceRecords) -> Iterator[StepEvidence]:
    """What a policy's detail asks for, of each of these tokens."""
    steps, detail = len(ids), policy.detail
    names = (MODEL, *(name for name, _ in policy.recipe.rules))
    stages = [STAGES.index(name) for name in names]
    totals, weighted, in_play = (part[:steps][:, stages] for part in (records.totals, records.weighted, records.in_play))
    # The best by their logits: dividing may have made some equal that were not.
    order = np.lexsort((records.ids[:steps], -records.logits[:steps]))[:, : detail.depth]
    first: Ids = np.take_along_axis(records.ids[:steps], order, 1)
    logits: npt.NDArray[np.float32] = np.take_along_axis(records.logits[:steps], order, 1)
    shown = np.count_nonzero(first >= 0, axis=1)
    probabilities = (np.exp(logits - logits[:, :1]) / totals[:, :1]).astype(np.float32)
    chosen_logits = records.chosen[:steps].astype(np.float32)
    logprobs = (chosen_logits - logits[:, 0] + np.log(probabilities[:, 0])).tolist()
    candidates = list(map(Candidates, *(cut_rows(part, shown) for part in (first, logits, probabilities))))
    if not detail.waterfall:
        yield from map(StepEvidence, candidates, logprobs)
        return

    # The waterfall's candidates: the best, and the chosen one behind them if it is none of them.
    chosen = np.array(ids, np.int64)[:, None]
    lengths = shown + (first != chosen).all(1)
    columns, positions = np.hstack((first, chosen)), np.hstack((order, np.full_like(chosen, -1)))
    shown_logits = np.hstack((logits, chosen_logits[:, None]))
    scaled = shown_logits / np.float32(policy.settings.temperature) if "temperature" in names else shown_logits
    by_stage = np.stack([shown_logits if name == MODEL else scaled for name in names], axis=1)
    by_stage[positions[:, None] >= in_play[:, :, None]] = -np.inf
    ends = by_stage[:, -1].astype(np.float64)
    ends = np.exp(ends - ends.max(1, keepdims=True)) / totals[:, -1:]
    entropies = np.maximum(0.0, (np.log(totals) - weighted / totals) / math.log(2)).tolist()
    counts = in_play.astype(np.int64).tolist()
    falls = zip(
        cut_rows(columns, lengths), cut_rows(by_stage, lengths), map(tuple, counts), map(tuple, entropies),
        cut_rows(ends, lengths), strict=True,
    )  # fmt: skip
    for step, fall in enumerate(falls):
        yield StepEvidence(candidates[step], logprobs[step], entropies[step][0], Waterfall(names, *fall))


def cut_rows(values: npt.NDArray[Any], lengths: Ids) -> list[npt.NDArray[Any]]:
    """Each step's values, as many along the last axis as it has."""
    if (lengths == lengths[0]).all():
        return list(values[..., : lengths[0]])
    return [row[..., :length] for row, length in zip(values, lengths.tolist(), strict=True)]


def needed_draws(policy: Policy, count: int, skip: int = 0) -> Draws:
    """The draws of a policy's next tokens but the first `skip`, which are none where it takes the best."""
    return policy.history.next_draws(skip + count)[skip:] if policy.settings.do_sample else np.zeros(count)
