"""Assisted decoding: somebody cheap drafts the next tokens, and the model checks all of them in one pass.

A pass over several tokens costs hardly more than one over a single token, so every guess that comes true is nearly free
(https://arxiv.org/abs/2211.17192). The draft decides nothing: at each position the policy chooses by the model's own
scores, with the draw that belongs to this step, and goes on for as long as it chooses what the draft had guessed. So the
text is the one that would have come without a draft, when tokens are drawn too; the usual method keeps no more than the
distribution. (Logits of several positions at once can differ from those of one at a time by rounding.)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from glassformer.decoding.lane import Lane
from glassformer.decoding.loop import loop, shared_prompts
from glassformer.decoding.policy import Policy, Step
from glassformer.decoding.prompt_lookup import before_end, lookup_continuation
from glassformer.decoding.shortlist import Ids
from glassformer.engine.protocol import Executor, Feed, Logits, Row, Want
from glassformer.ground.errors import NotNumbers, SettingError, spell

FIRST_DRAFT, LONGEST_DRAFT = 5, 20  # how many tokens a helper drafts at first, and at most, unless more are asked for
PATIENCE, LONGEST_REST = 2, 32  # how many useless drafts in a row are borne, and for how many tokens then none is made

Drafts = Mapping[Policy, Sequence[int]]


class Drafter(Protocol):
    def draft(self, room: Mapping[Policy, int]) -> Drafts:
        """What each policy might choose next, at most `room` tokens; for some nothing, perhaps."""

    def close(self, policy: Policy) -> None:
        """Forget a policy: it has ended."""


@runtime_checkable
class StateDrafter(Drafter, Protocol):
    """One that goes on from what the model's own passes give."""

    reads: frozenset[str]  # the sites that it needs of every pass

    def observe(self, policy: Policy, start: int, values: Mapping[str, Any]) -> None:
        """What a pass gave of a text's tokens from a position on, at these sites."""

    def follow(self, first: Policy, other: Policy) -> None:
        """Another text begins with all that a first one has read."""


def speculate(executor: Executor, policies: Sequence[Policy], drafter: Drafter) -> Iterator[tuple[int, Step]]:
    """Run every policy's prompt to its end as `loop` does, but check drafts; yields (which, step) as tokens come."""
    return loop(executor, policies, drafts=EveryPass(drafter))


class EveryPass:
    """A drafter that is asked before every pass, whatever its drafts cost."""

    shares_with_sampler = False

    def __init__(self, drafter: Drafter, longest: int = sys.maxsize) -> None:
        """`longest`: how many tokens a draft has at most."""
        self.drafter = drafter
        self.accepted_tokens = 0
        self._longest = longest
        self.reads: frozenset[str] = drafter.reads if isinstance(drafter, StateDrafter) else frozenset()

    def plan(self, lanes: Mapping[int, Lane]) -> dict[int, list[int]]:
        begun = [lane for lane in lanes.values() if lane.policy.chosen]
        drafts = self.drafter.draft({lane.policy: min(lane.draft_room, self._longest) for lane in begun})
        return {key: list(draft) for key, lane in lanes.items() if (draft := drafts.get(lane.policy))}

    def add_pass(self, positions: int, seconds: float) -> None:
        """Nothing: it drafts anyway."""

    def observe(self, policy: Policy, start: int, values: Mapping[str, Any]) -> None:
        if isinstance(self.drafter, StateDrafter):
            self.drafter.observe(policy, start, values)

    def follow(self, first: Policy, other: Policy) -> None:
        if isinstance(self.drafter, StateDrafter):
            self.drafter.follow(first, other)

    def forget(self, policy: Policy) -> None:
        self.drafter.close(policy)


class LookupDrafter:
    """Drafts what followed the last few tokens when they came before, in the prompt or since."""

    def __init__(self, size: int = 2) -> None:
        """`size`: how many last tokens are looked for; fewer when that many are nowhere."""
        self.size = size

    def draft(self, room: Mapping[Policy, int]) -> Drafts:
        return {policy: self._draft_for(policy, most) for policy, most in room.items()}

    def close(self, policy: Policy) -> None:
        """There is nothing to forget."""

    def _draft_for(self, policy: Policy, most: int) -> Sequence[int]:
        settings, ids = policy.settings, policy.history.ids
        if policy.source is not None:
            ids = np.concatenate((np.asarray(policy.source, np.int64), ids))
        return before_end(
            lookup_continuation(ids, self.size, min(settings.prompt_lookup_num_tokens or most, most)), settings.eos
        )


@dataclass(eq=False, slots=True)
class DraftState:
    """A helper's row for one policy, and what it drafted last."""

    row: Row
    count: int  # how many tokens it drafts
    most: int  # how many it ever drafts
    start: int = 0  # where the last draft began
    ids: list[int] = field(default_factory=list)
    useless: int = 0  # drafts in a row of which nothing came true
    rests_until: int = 0  # the length of the text from which on it drafts again

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted where it would begin now."""
        return self.start < self.rests_until

    def adapt(self, ids: Ids) -> int:
        """Draft more when all guesses came true, and fewer when not; how much of the text was foreseen.

        Where nothing comes true again and again, it rests, for twice as many tokens each time.
        """
        actual = ids[self.start : self.start + len(self.ids)]
        wrong = np.flatnonzero(actual != np.asarray(self.ids[: actual.size], np.int64))
        correct = int(wrong[0]) if wrong.size else actual.size
        if self.ids:
            self.count = min(self.count + 2, self.most) if correct == len(self.ids) else max(self.count - 1, 1)
            self.useless = 0 if correct else self.useless + 1
            if self.useless > PATIENCE:
                self.rests_until = ids.size + min(2 ** (self.useless - PATIENCE), LONGEST_REST)
        return self.start + correct


class ModelDrafter:
    """Drafts with a smaller model of the same vocabulary. It follows the policy's own rules and draws, since then the two
    models choose the same most often."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._states: dict[Policy, DraftState] = {}

    def draft(self, room: Mapping[Policy, int]) -> Drafts:
        """All drafts grow together: a pass for each token."""
        room = {policy: min(most, self.executor.context - policy.history.ids.size + 1) for policy, most in room.items()}
        with_room = [policy for policy, most in room.items() if most > 0]
        self._open([policy for policy in with_room if policy not in self._states])
        going: dict[Policy, Policy] = {}
        for policy in with_room:
            state, ids = self._states[policy], policy.history.ids
            self.executor.rewind(state.row, state.adapt(ids))
            state.start, state.ids = ids.size, []
            if not state.rests:
                going[policy] = policy.drafting_fork()
        drafts = {policy: self._states[policy].ids for policy in going}
        while going:
            feeds = [self._feed(policy) for policy in going]
            for (policy, drafting_fork), logits in zip(list(going.items()), self.executor.run(feeds), strict=True):
                state = self._states[policy]
                token = drafted_token(drafting_fork, logits)
                if token is not None:
                    state.ids.append(token)
                if token is None or len(state.ids) == min(state.count, room[policy]):
                    del going[policy]
        return drafts

    def close(self, policy: Policy) -> None:
        if policy in self._states:
            self.executor.close(self._states.pop(policy).row)

    def _open(self, policies: Sequence[Policy]) -> None:
        """Read new prompts; one that several policies share is read once."""
        groups = shared_prompts(policies)
        for first, *_ in groups:
            self._add(first, self.executor.open(first.source))
        feeds = [Feed(self._states[first].row, first.prompt, Want.NONE) for first, *_ in groups]
        if feeds:
            self.executor.run(feeds)
        for first, *others in groups:
            for other in others:
                self._add(other, self.executor.fork(self._states[first].row))

    def _add(self, policy: Policy, row: Row) -> None:
        count = policy.settings.num_assistant_tokens or FIRST_DRAFT
        self._states[policy] = DraftState(row, count, max(count, LONGEST_DRAFT), len(policy.prompt))

    def _feed(self, policy: Policy) -> Feed:
        """What its row has not read yet of the text and the draft."""
        state = self._states[policy]
        ids = (*policy.history.ids[state.row.length :].tolist(), *state.ids[max(0, state.row.length - state.start) :])
        return Feed(state.row, ids)


def drafted_token(drafting_fork: Policy, logits: Logits) -> int | None:
    """What would be chosen by these logits; None when the text would end, or nothing be left, which is for the model to
    say: the draft can be wrong."""
    try:
        step = drafting_fork.feed(logits.host())
    except NotNumbers as error:
        raise NotNumbers(f"in the model that drafts: {error} Leave out {spell('assistant_model')}.") from None
    except SettingError:
        return None
    return None if step.finish else step.id
