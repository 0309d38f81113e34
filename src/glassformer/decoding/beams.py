"""Beam search: follow the most likely texts at once, and take the best as a whole.

At each step every beam proposes its tokens, and the best sums of log-probabilities go on, whichever beam they come from.
A text that ends leaves the search and is kept with its sum divided by length^length_penalty. What the books leave open
(how many candidates are looked at, which of them may end, when to stop) is as in transformers; but a candidate that is
out is never taken to fill a place, and each prompt is searched as if it were alone.

With do_sample the candidates are drawn without replacement, in proportion to the probabilities of the texts so far, by
adding Gumbel noise, which is −log of an exponential one, to the sums and taking the best (https://arxiv.org/abs/1903.06059).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from glassformer.decoding.lane import Lane, close_all, run_lanes, with_sites
from glassformer.decoding.policy import NOTHING, Outcome, Policy, Step
from glassformer.decoding.shortlist import Floats, Shortlist, log_softmax
from glassformer.decoding.stopping import Finish
from glassformer.decoding.token_history import BEAMS
from glassformer.engine import protocol
from glassformer.engine.protocol import Executor, copied
from glassformer.ground.candidates import leaders
from glassformer.ground.errors import NotNumbers, SettingError
from glassformer.ground.sites import Watch


def beams(executor: Executor, policies: Sequence[Policy], watch: Watch | None = None) -> Iterator[tuple[int, Step]]:
    """Search for every prompt's best texts; yields (which, step), all steps of a text when its prompt's search has ended.

    For each prompt there are `num_return_sequences` policies side by side, and each stands for one text, the best first. The
    policies themselves choose nothing: the outcome of a text's last step tells which fork of them wrote it, its score, and
    the beam that each token came from. All prompts run together, a row for each beam. Closing the iterator early gives the
    rows' memory back. `watch`: what is read and changed in every pass.
    """
    count = policies[0].settings.num_return_sequences
    searches: list[Search] = []
    try:
        groups = range(0, len(policies), count)
        searches.extend(Search(executor, policies[first : first + count], first, watch) for first in groups)
        while searches:
            logits = iter(run_lanes(executor, [lane for search in searches for lane in search.active_lanes]))
            for search in searches:
                search.advance([next(logits) for _ in search.active_lanes])
            for search in searches:
                if not search.beams:
                    yield from search.results()
            searches = [search for search in searches if search.beams]
    finally:
        for search in searches:
            search.close()


@dataclass(eq=False, slots=True)
class Beam:
    """One of the texts that are compared."""

    policy: Policy  # a fork with the text as its history
    lane: int  # which lane remembers it
    score: np.float32  # the log-probabilities' sum, as the rules left them
    steps: tuple[Step, ...] = ()
    beams: tuple[int, ...] = ()  # which beam each token came from

    @property
    def finish(self) -> Finish | None:
        return self.steps[-1].finish


class Continuation(NamedTuple):
    """How a text may go on: a beam, a token after it, and the sum that they would have."""

    beam: int
    token: int
    score: np.float32


class Search:
    """One prompt's search."""

    def __init__(self, executor: Executor, policies: Sequence[Policy], first: int = 0, watch: Watch | None = None) -> None:
        """`first`: the index of the first policy among all."""
        self.executor = executor
        self.policies = policies
        self.first = first
        self.settings = policies[0].settings
        self.width = self.settings.num_beams
        self.candidates_per_step = max(2, 1 + len(self.settings.eos)) * self.width  # so that enough are left when some end
        self.lanes = [Lane(executor, policies[0], watch)]
        self.beams = [Beam(policies[0], 0, np.float32(0))]  # that go on, best first; none when the search is over
        self.done: list[Beam] = []  # that ended, best first, as many as there are beams at most
        self.prompt_steps = tuple(self.lanes[0].prompt_steps)
        self.beam_scores: list[Floats] = []  # of all beams at each step, if they are asked for
        self.beam_logits: list[Floats] = []
        self.beam_sites: list[Sequence[Mapping[str, Any]]] = []

    @property
    def active_lanes(self) -> list[Lane]:
        """The beams' lanes."""
        return [self.lanes[beam.lane] for beam in self.beams]

    def advance(self, passed: Sequence[Sequence[protocol.Logits]]) -> None:
        """Go one token further by what the lanes of the beams that go on have given."""
        logits = [self._host_logits(beam, row) for beam, (row,) in zip(self.beams, passed, strict=True)]
        shortlists = [beam.policy.stages(log_softmax(row)) for beam, row in zip(self.beams, logits, strict=True)]
        sites = [row.sites for (row,) in passed]
        self._record_scores(logits, shortlists)
        self._record_sites(sites)
        continuations = self._continuations([stages[-1] for stages in shortlists])
        if not continuations and not self.done:
            self.beams[0].policy.check_not_empty(shortlists[0])

        @cache
        def text(index: int) -> Beam:
            source, token, score = continuations[index]
            beam, stages = self.beams[source], shortlists[source]
            policy = beam.policy.fork()
            step = policy.accept(token, gap=float(stages[0].scores.max() - stages[0].scores[token]))
            if policy.detail is not NOTHING:
                step = policy.explain(step, stages)
            if not policy.detail.passes:
                step = with_sites(step, sites[source], policy.detail)
            return Beam(policy, beam.lane, score, (*beam.steps, step), (*beam.beams, source))

        ended = [text(index) for index in range(min(self.width, len(continuations))) if text(index).finish]
        # drawn ones come in another order
        ranked = sorted(range(len(continuations)), key=lambda index: -continuations[index].score)
        active = list(islice((text(index) for index in ranked if not text(index).finish), self.width))
        ended = [replace(beam, score=self._final_score(beam.score, len(beam.steps))) for beam in ended]
        self.done = sorted((*self.done, *ended), key=lambda beam: -beam.score)[: self.width]
        if self._is_over(active):
            self.close()
        else:
            self._assign_lanes(active)

    def results(self) -> Iterator[tuple[int, Step]]:
        """The steps of the best texts, as many as there are policies."""
        if len(self.done) < len(self.policies):
            raise SettingError(
                f"the rules leave no more than {len(self.done)} different texts, and num_return_sequences is "
                f"{len(self.policies)}. Ask for fewer, or allow more."
            )
        for index, beam in enumerate(self.done[: len(self.policies)], self.first):
            *steps, last = beam.steps
            outcome = Outcome(
                beam.policy,
                self.prompt_steps,
                float(beam.score),
                beam.beams,
                tuple(self.beam_scores),
                tuple(self.beam_logits),
                beam_sites=tuple(self.beam_sites),
            )
            for step in (*steps, replace(last, outcome=outcome)):
                yield index, step

    def close(self) -> None:
        close_all(self.lanes)
        self.lanes, self.beams = [], []

    def _host_logits(self, beam: Beam, row: protocol.Logits) -> Floats:
        """A beam's logits, which must be numbers."""
        logits = row.host()
        try:
            beam.policy.best(logits)
        except NotNumbers as error:
            raise self.lanes[beam.lane].located(error) from None
        return logits

    def _record_scores(self, logits: Sequence[Floats], shortlists: Sequence[Sequence[Shortlist]]) -> None:
        """Keep all beams' scores if they are asked for; while there are fewer, the last one's stand for the rest."""
        detail, beams = self.policies[0].detail, self._filled_up(len(logits))
        if detail.raw:
            self.beam_logits.append(np.stack([logits[beam] for beam in beams]))
        if detail.scores:
            self.beam_scores.append(np.stack([shortlists[beam][-1].full_scores(logits[beam].size) for beam in beams]))

    def _record_sites(self, sites: Sequence[Mapping[str, Any]]) -> None:
        """Keep what a watch read of all beams if it is asked for; while there are fewer, the last one's stands for the
        rest."""
        if self.policies[0].detail.passes:
            kept = [{site: copied(value) for site, value in values.items()} for values in sites]
            self.beam_sites.append([kept[beam] for beam in self._filled_up(len(kept))])

    def _filled_up(self, count: int) -> list[int]:
        """The indices of `count` beams, the last one again and again where there are fewer than the search is wide."""
        return [min(index, count - 1) for index in range(self.width)]

    def _continuations(self, shortlists: Sequence[Shortlist]) -> list[Continuation]:
        """The best continuations of all beams, best first; or as many drawn ones, as they were drawn."""
        draws = self.beams[0].policy.history.draws(BEAMS) if self.settings.do_sample else None
        keys: list[npt.NDArray[np.floating]] = []
        continuations: list[Continuation] = []
        for source, (beam, shortlist) in enumerate(zip(self.beams, shortlists, strict=True)):
            sums = shortlist.scores + beam.score
            ranks = sums if draws is None else sums - np.log(draws.standard_exponential(sums.size))
            best = highest(ranks, self.candidates_per_step)
            keys.append(ranks[best])
            continuations += [Continuation(source, shortlist.id_at(int(index)), sums[index]) for index in best]
        order = np.argsort(-np.concatenate(keys), kind="stable")
        return [continuations[rank] for rank in order[: self.candidates_per_step]]

    def _final_score(self, score: np.float32, length: int) -> np.float32:
        """A text's final score, by which long and short ones are compared."""
        return np.float32(score / np.float32(length**self.settings.length_penalty))

    def _is_over(self, active: Sequence[Beam]) -> bool:
        """Whether the search has ended: nothing goes on, enough texts are done, or what goes on will not be better.

        How good a beam can become is judged by its length now; with early_stopping='never' by the length that favours it
        most, which is the limit when long texts are favoured.
        """
        if not active or len(self.done) < self.width:
            return not active
        if self.settings.early_stopping is True:
            return True
        far = self.settings.early_stopping == "never" and self.settings.length_penalty > 0
        length = self.policies[0].room if far else len(active[0].steps)
        return bool(self._final_score(active[0].score, length) <= self.done[-1].score)

    def _assign_lanes(self, active: list[Beam]) -> None:
        """Give each beam a lane that remembers its text, and feed it its last token.

        One beam stays where the one before it was; others after the same take over a lane that nobody needs now.
        """
        parents = list(range(len(self.lanes)))
        spare = sorted(set(parents) - {beam.lane for beam in active})
        taken = set()
        for beam in active:
            if beam.lane in taken and spare:
                parents[spare[-1]] = beam.lane
                beam.lane = spare.pop()
            elif beam.lane in taken:
                self.lanes.append(self.lanes[beam.lane].fork(beam.policy))
                beam.lane = len(self.lanes) - 1
            taken.add(beam.lane)
        rows = [lane.feeds[0].row for lane in self.lanes[: len(parents)]]
        if parents != list(range(len(rows))):
            self.executor.select(rows, parents)
        self.beams = active
        for beam, lane in zip(active, self.active_lanes, strict=True):
            lane.policy = beam.policy
            lane.feed_next(beam.steps[-1].id)


def highest(scores: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """The indices of the best `count` of those in play, in ascending order."""
    indices = leaders(scores, count)
    if indices.size > count:
        indices = indices[np.argpartition(scores[indices], -count)[-count:]]
    return np.sort(indices[scores[indices] > -np.inf])
