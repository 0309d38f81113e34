"""The policy of one sequence: scores in, a token out, and why.

It is pure but for its own history, knows no model and no torch, and its draws are counted, not streamed: the draw of
step n depends on (seed, return index, n) alone. So a sequence has the same draws alone or in a batch, and a policy can be
forked, replayed or asked for one step.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from glassformer.candidates import Candidates, top
from glassformer.decoding import rules
from glassformer.decoding.rules import Rule, Shortlist
from glassformer.decoding.settings import GenerationConfig
from glassformer.errors import ExecutorError


class Finish(Enum):
    """Why a sequence ended."""

    EOS = "eos"  # the model said so
    LENGTH = "length"  # it reached its limit, or the context's end


@dataclass(frozen=True, slots=True)
class Step:
    """One chosen token."""

    id: int
    finish: Finish | None = None
    draw: float | None = None  # the number in [0, 1) that picked it; None when the best was taken
    candidates: Candidates | None = None  # the model's own best, if asked for
    logprob: float | None = None  # of the chosen token under the model's own scores, if candidates were asked for


class Policy:
    def __init__(
        self,
        settings: GenerationConfig,
        prompt: Sequence[int],
        *,
        context: int,
        seed: int | None = None,
        index: int = 0,
        look: int = 0,
        source: Sequence[int] | None = None,
    ) -> None:
        """`context`: how many tokens the model can hold; `index`: which of several texts this is; `look`: how many
        candidates each step is to carry; `source`: what an encoder reads first."""
        self.settings = settings
        self.prompt = tuple(prompt)
        self.source = source
        self.chosen: list[int] = []
        self.room = settings.room(len(self.prompt), context)
        self.seed = settings.seed if seed is None else seed
        if self.seed is None and settings.do_sample:
            self.seed = secrets.randbits(32)
        self.index = index
        self.look = look
        self.rules = _rules(settings)

    def shape(self, scores: npt.NDArray[np.float32]) -> Shortlist:
        """The rules alone: what is still in play, and its scores."""
        field = Shortlist(scores)
        for rule in self.rules:
            field = rule(field)
        return field

    def feed(self, scores: npt.NDArray[np.float32]) -> Step:
        """Shape, choose, accept."""
        if (forced := self._forced()) is not None:
            return self.accept(forced, scores)
        field = self.shape(scores)
        draw = None
        if self.settings.do_sample:
            draw = self._draw()
            chosen = field.id(pick(field.probabilities(), draw))
        else:
            best = int(field.scores.argmax())
            if np.isnan(field.scores[best]):  # argmax stops at the first NaN
                raise ExecutorError(f"the model's scores at step {len(self.chosen)} are not numbers (NaN).")
            chosen = field.id(best)
        return self.accept(chosen, scores, draw)

    def _forced(self) -> int | None:
        """The token that the settings put here, whatever its score."""
        last = self.settings.forced_eos_token_id
        if len(self.chosen) == self.room - 1 and last is not None:
            return last if isinstance(last, int) else last[0]
        if len(self.prompt) + len(self.chosen) == 1:
            return self.settings.forced_bos_token_id
        return None

    def accept(self, token: int, scores: npt.NDArray[np.float32] | None = None, draw: float | None = None) -> Step:
        """Take this token, chosen here, forced, or verified elsewhere."""
        self.chosen.append(token)
        finish = None
        if token in self.settings.eos:
            finish = Finish.EOS
        elif len(self.chosen) >= self.room:
            finish = Finish.LENGTH
        if not self.look or scores is None:
            return Step(token, finish, draw)
        candidates = top(scores, self.look)
        total = np.log(np.exp(scores - candidates.scores[0], dtype=np.float32).sum(dtype=np.float64))
        return Step(token, finish, draw, candidates, float(scores[token] - candidates.scores[0] - total))

    def fork(self) -> Policy:
        """A policy that goes on from here by itself."""
        other = copy(self)
        other.chosen = list(self.chosen)
        return other

    def _draw(self) -> float:
        bits = np.random.Philox(key=[self.seed or 0, self.index], counter=[len(self.chosen), 0, 0, 0])
        return float(np.random.Generator(bits).random())


def pick(probabilities: npt.NDArray[np.float64], draw: float) -> int:
    """The candidate under whose share of [0, 1) the draw falls."""
    if np.isnan(probabilities[0]):
        raise ExecutorError("the model's scores are not numbers (NaN).")
    upto = np.cumsum(probabilities)
    return min(int(np.searchsorted(upto, draw * upto[-1], side="right")), probabilities.size - 1)


def _rules(settings: GenerationConfig) -> tuple[Rule, ...]:
    """The rules in force, in the field's customary order."""
    if not settings.do_sample:
        return ()
    found: list[Rule] = []
    if settings.temperature != 1.0:
        found.append(rules.temperature(settings.temperature))
    if settings.top_k:
        found.append(rules.top_k(settings.top_k))
    if settings.top_p is not None and settings.top_p < 1.0:
        found.append(rules.top_p(settings.top_p))
    return tuple(found)
