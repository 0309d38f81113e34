"""The policy of one sequence: logits in, a token out, and why.

It is pure but for its own history, knows no model and no torch, and can be forked, replayed or asked for one step.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from glassformer.decoding.recipe import Recipe
from glassformer.decoding.settings import GenerationConfig
from glassformer.decoding.shortlist import Floats, Shortlist
from glassformer.decoding.stopping import Finish, after_seconds
from glassformer.decoding.token_history import TokenHistory
from glassformer.decoding.waterfall import MODEL, Waterfall, waterfall
from glassformer.engine.protocol import BEST, Choice, Row, Source
from glassformer.ground.candidates import Candidates, EntropyStats, entropy_stats, top
from glassformer.ground.errors import InputError, NotNumbers, SettingError

SHOWN_CANDIDATES = 10  # how many of the best are shown, where all are kept


@dataclass(frozen=True, slots=True)
class Step:
    """One chosen token."""

    id: int
    finish: Finish | None = None
    draw: float | None = None  # the number in [0, 1) that picked it; None when the best was taken
    drafted: bool = False  # whether a draft had guessed it
    candidates: Candidates | None = None  # the model's own best, if asked for, as is all that follows
    logprob: float | None = None  # of the chosen token under the model's logits
    entropy: float | None = None  # of the model's own probabilities, in bits
    waterfall: Waterfall | None = None  # what each rule did to each candidate
    raw: Floats | None = None  # all logits: before the rules
    scores: Floats | None = None  # and after them
    sites: Mapping[str, Any] | None = None  # what a watch read at the position that predicted it: (hidden) and so on
    pass_sites: Mapping[str, Any] | None = field(
        default=None, compare=False, repr=False
    )  # of all tokens of that pass, (1, length, …), if `detail.passes` asks
    outcome: Outcome | None = field(default=None, compare=False, repr=False)  # of the whole text, with its last step


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a driver knows of a text when it has ended."""

    policy: Policy  # that chose it; where beams compared texts, the winner's
    prompt_steps: tuple[Step, ...] = ()  # of the prompt's own tokens, if prompt_logprobs asks for them
    score: float | None = None  # of the whole text, where beams compared texts
    beams: tuple[int, ...] = ()  # which beam each token came from
    beam_scores: tuple[Floats, ...] = ()  # of all beams at each step, (beams, vocabulary), if `detail.scores` asks
    beam_logits: tuple[Floats, ...] = ()  # all beams' logits at each step, if `detail.raw` asks
    cached_tokens: int = 0  # of the prompt, that were not read again
    beam_sites: tuple[Sequence[Mapping[str, Any]], ...] = ()  # of all beams at each step, if `detail.passes` asks
    kv: Any = None  # the keys and values of the text, in its executor's form, if `detail.kv` asks


@dataclass(frozen=True, slots=True)
class StepDetail:
    """What each step carries beside its token."""

    candidates: int = 0  # how many of the model's best, and the chosen token's log-probability
    waterfall: bool = False  # what each rule did to these
    everything: bool = False  # to all candidates, not the best alone
    raw: bool = False
    scores: bool = False
    passes: bool = False  # what a watch reads at all tokens of a pass, the prompt's too, and not at the last one alone
    kv: bool = False  # with the last step, the keys and values of the whole text

    @property
    def depth(self) -> int:
        """The candidates of which something is to be said."""
        return max(self.candidates, int(self.waterfall))

    @classmethod
    def of(cls, depth: int | str) -> StepDetail:
        """For this many candidates, or 'all', what the rules did to them; 0: nothing."""
        if depth == "all":
            return cls(SHOWN_CANDIDATES, waterfall=True, everything=True)
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise InputError(f"look is {depth!r}; it must be a number of candidates, or 'all'.")
        return cls(depth, waterfall=True) if depth else NOTHING


NOTHING: Final = StepDetail()
CHOICE_RULES = ("temperature", "top_k", "top_p", "min_p")  # that an executor may know, in the order in which they run


class Policy:
    def __init__(
        self,
        recipe: Recipe,
        prompt: Sequence[int],
        *,
        context: int,
        seed: int | None = None,
        index: int = 0,
        detail: StepDetail = NOTHING,
        entropy_stats: Callable[[Floats], EntropyStats] = entropy_stats,
        source: Sequence[int] | None = None,
        negative: Sequence[int] | None = None,
        row: Row | None = None,
        vectors: Any = None,
        prompt_index: int = 0,
    ) -> None:
        """`context`: how many tokens the model can hold; `index`: which of several texts this is; `detail`: what each step
        carries; `entropy_stats`: an engine's faster way to compute them; `source`: what an encoder reads first;
        `negative`: the prompt that guidance leads away from; `row`: a row that has read part of the prompt, or its source,
        already, and which this text takes over; `vectors`: what is read in place of the prompt's embeddings, (tokens,
        hidden), where there may be no ids at all; `prompt_index`: which of a batch's prompts this is."""
        settings = recipe.settings
        self.recipe = recipe
        self.source = source
        self.negative = negative
        self.row = row
        self.vectors = vectors
        self.cache_salt: Hashable = None  # what was read before is used again by texts of the same salt alone
        length = len(prompt) if vectors is None else len(vectors)
        if negative is None and settings.is_active("guidance_scale"):
            if source is not None:
                raise SettingError("an encoder-decoder's guidance_scale needs a negative prompt. Pass negative_prompt too.")
            if not prompt:
                raise SettingError(
                    "a prompt without ids leaves guidance_scale nothing to lead away from. Pass negative_prompt_ids too."
                )
            self.negative = tuple(prompt[-1:])
        seed = settings.seed if seed is None else seed
        if seed is None and settings.do_sample:
            seed = secrets.randbits(32)
        self.history = TokenHistory(prompt, settings.room(length, context), seed, index)
        self.history.prompt_index, self.history.unseen = prompt_index, length - len(prompt)
        if recipe.grammar is not None:
            self.history.guide = recipe.grammar.guide()
        self.detail = NOTHING if detail == NOTHING else detail  # asked for by identity at each step
        self._entropy_stats = entropy_stats
        self.gap = 0.0  # how far below the best the chosen ones were, all in all
        self._eos = settings.eos
        self._stops = recipe.stops if settings.max_time is None else (*recipe.stops, after_seconds(settings.max_time))

    @property
    def settings(self) -> GenerationConfig:
        return self.recipe.settings

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.history.prompt

    @property
    def prefix_key(self) -> tuple[object, ...]:
        """What it reads before the first token: policies that agree in this can share it."""
        texts = (None if ids is None else Source.of(ids) for ids in (self.source, self.negative))
        return self.prompt, *texts, id(self.row), id(self.vectors)

    @property
    def choice(self) -> Choice | None:
        """How an executor may choose its next tokens by itself; None where that takes more than these rules and numbers."""
        settings, detail, names = self.settings, self.detail, [name for name, _ in self.recipe.rules]
        custom_rules = settings.rules is not None or bool(settings.logits_processor)
        if (
            settings.num_beams > 1
            or custom_rules
            or self.history.guide is not None
            or detail.everything
            or detail.raw
            or detail.scores
            or detail.passes
        ):
            return None
        if not settings.do_sample and not names:
            return Choice(candidates=detail.depth) if detail is not NOTHING else BEST
        if not settings.do_sample or any(name not in CHOICE_RULES for name in names):
            return None
        rules = {name: getattr(settings, name) for name in names}
        return Choice(sampled=True, candidates=detail.depth, **rules)

    @property
    def chosen(self) -> list[int]:
        return self.history.chosen

    @property
    def room(self) -> int:
        return self.history.room

    @property
    def seed(self) -> int | None:
        return self.history.seed

    def shape(self, logits: Floats, negative: Floats | None = None) -> Shortlist:
        """The rules alone: what is still in play, and its scores."""
        return self.stages(logits, negative)[-1]

    def stages(self, logits: Floats, negative: Floats | None = None) -> list[Shortlist]:
        """What is in play at first and after each rule."""
        self.history.size, self.history.negative_logits = logits.size, negative
        shortlists = [Shortlist(logits)]
        for _, rule in self.recipe.rules:
            shortlists.append(rule(shortlists[-1], self.history))
        return shortlists

    def best(self, logits: Floats) -> int:
        """The token with the highest logit, which must be a number."""
        best = int(logits.argmax())  # stops at the first NaN
        if not math.isfinite(logits[best]):
            raise NotNumbers(f"the model's scores at step {self.history.step} are not numbers (NaN or infinite).")
        return best

    def feed(self, logits: Floats, negative: Floats | None = None) -> Step:
        """Shape, choose, accept. `negative`: the logits after the negative prompt, where there is one."""
        best = self.best(logits)
        draw, chosen, shortlists = None, best, []
        if self.recipe.rules or self.settings.do_sample:
            shortlists = self.stages(logits, negative)
            shortlist = shortlists[-1]
            self.check_not_empty(shortlists)
            if self.settings.do_sample:
                draw = self.history.draw()
                shares = shortlist.probabilities()
                index = pick(shares, draw)
                self.history.surprisals.append(-float(np.log2(shares[index])))
            else:
                index = int(shortlist.scores.argmax())
            chosen = shortlist.id_at(index)
        step = self.accept(chosen, draw, float(logits[best] - logits[chosen]))
        return step if self.detail is NOTHING else self.explain(step, shortlists or [Shortlist(logits)])

    def accept(self, token: int, draw: float | None = None, gap: float = 0.0) -> Step:
        """Take this token, chosen here, forced, or verified elsewhere; `gap`: how far its logit is below the best."""
        history = self.history
        self.gap += gap
        history.add(token)
        finish = None
        if token in self._eos:
            finish = Finish.EOS
        elif history.guide is not None:
            history.guide.accept(token)
            finish = Finish.COMPLETE if history.guide.done else None
        if finish is None and self._stops:
            finish = next((reason for stop in self._stops if (reason := stop(history)) is not None), None)
        if finish is None and history.step >= history.room:
            finish = Finish.LENGTH
        return Step(token, finish, draw)

    def fork(self, index: int | None = None) -> Policy:
        """A policy that goes on from here by itself; `index`: as another of several texts."""
        clone = copy(self)
        clone.history = self.history.fork()
        if index is not None:
            clone.history.index = index
        return clone

    def drafting_fork(self) -> Policy:
        """A fork that only says what would be chosen: it explains nothing, and asks nobody when to stop."""
        clone = self.fork()
        clone.detail, clone._stops = NOTHING, ()
        return clone

    def check_not_empty(self, shortlists: Sequence[Shortlist]) -> None:
        """Refuse to choose from nothing, and say which rules left it."""
        last = shortlists[-1].scores
        if last.size and last.max() > -np.inf:
            return
        names = [name for name, _ in self.recipe.rules]
        bans = [
            name
            for name, before, after in zip(names, shortlists, shortlists[1:], strict=False)
            if np.count_nonzero(after.scores > -np.inf) < np.count_nonzero(before.scores > -np.inf)
        ]
        raise SettingError(f"no token is left at step {self.history.step}: {', '.join(bans)} took out all. Allow more.")

    def explain(self, step: Step, shortlists: Sequence[Shortlist]) -> Step:
        """The step with all that was asked for."""
        detail, logits = self.detail, shortlists[0].scores
        candidates, logprob, entropy, fall = None, None, None, None
        stats: list[EntropyStats] = []
        if detail.waterfall:
            for before, shortlist in zip((None, *shortlists), shortlists, strict=False):
                stats.append(stats[-1] if shortlist is before else self._entropy_stats(shortlist.scores))
            entropy = stats[0].entropy
        if detail.candidates or detail.waterfall:
            candidates, logprob = candidates_and_logprob(
                logits, step.id, detail.candidates, stats[0].total if stats else None
            )
            if detail.waterfall:
                names = (MODEL, *[name for name, _ in self.recipe.rules[: len(shortlists) - 1]])
                fall = waterfall(names, shortlists, stats, None if detail.everything else candidates.ids, step.id)
        return Step(
            step.id, step.finish, step.draw, step.drafted, candidates, logprob, entropy, fall,
            logits.copy() if detail.raw else None, shortlists[-1].full_scores(logits.size).copy() if detail.scores else None,
        )  # fmt: skip


def candidates_and_logprob(logits: Floats, token: int, count: int, total: float | None = None) -> tuple[Candidates, float]:
    """The best `count` candidates, and a token's log-probability among all; `total` as for `top`."""
    candidates = top(logits, max(count, 1), total)
    return candidates, float(logits[token] - candidates.scores[0] + np.log(candidates.probabilities[0]))


def pick(probabilities: npt.NDArray[np.float64], draw: float) -> int:
    """The candidate under whose share of [0, 1) the draw falls."""
    upto = np.cumsum(probabilities)
    return min(int(np.searchsorted(upto, draw * upto[-1], side="right")), probabilities.size - 1)
