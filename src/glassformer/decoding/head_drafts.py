"""Drafts by a model's own head for further tokens (multi-token prediction, `blueprints/drafts.py`).

The head reads pairs: a token, and the model's last states before it. Those of a text come out of the passes that read it
anyway, so the head's row follows the text by a pair for each token. From its newest pair it guesses the token after the
newest one; the guess and the head's own states are a pair again, and so on. Pairs with guesses in them are dropped before
the next draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.decoding.lane import Lane
from glassformer.decoding.policy import Policy
from glassformer.decoding.prompt_lookup import HIGHEST_SHARE, MeasuredCost, PassCost
from glassformer.decoding.speculative import LONGEST_DRAFT, Drafts, DraftState, EveryPass, drafted_token
from glassformer.engine.protocol import Description, Executor, Feed
from glassformer.ground.changes import Change
from glassformer.ground.sites import HEAD_INPUT, Watch

MOST_UNREAD = 2**24  # numbers of states that wait for a draft; of more the first ones are let go
FIRST_DRAFT = 3  # how many tokens are drafted at first: each guess is made of the one before
STATES = "final"  # the site whose values a head goes on from, the model's and its own

States = npt.NDArray[np.float32]


@dataclass(eq=False, slots=True)
class PairsRow(DraftState):
    """The head's row for one policy, and the states that it has not read yet."""

    pairs: int = 0  # in the row, without those that hold guesses
    begin: int = 0  # the position in the text of the first state that is not in the row
    states: list[States] = field(default_factory=list)  # from there on, each (tokens, hidden)

    def add(self, start: int, states: States) -> None:
        """The states of tokens from a position on, which may have been seen before, or follow others that nobody saw."""
        known = self.begin + sum(map(len, self.states))
        if start > known:
            self.begin, self.states = start, [states]
            return
        before = self.take(start - self.begin)
        self.states = [*before, states[max(0, self.begin - start) :]]
        while len(self.states) > 1 and sum(part.size for part in self.states) > MOST_UNREAD:
            self.begin += len(self.states.pop(0))

    def take(self, count: int) -> list[States]:
        """The first of its states."""
        return [np.concatenate(self.states)[:count]] if count > 0 and self.states else []


class HeadDrafter:
    """It follows the policy's own rules and draws, as a smaller model does that drafts."""

    reads = frozenset({STATES})

    def __init__(self, executor: Executor) -> None:
        """`executor`: of the head, as a model of its own."""
        self.executor = executor
        self._rows: dict[Policy, PairsRow] = {}

    def observe(self, policy: Policy, start: int, values: Mapping[str, Any]) -> None:
        """What a pass gave of a text's tokens from a position on, at the sites that it reads."""
        self._row(policy).add(start, _host(values[STATES]))

    def follow(self, first: Policy, other: Policy) -> None:
        """Another text begins with all that a first one has read."""
        row, of_other = self._row(first), self._row(other)
        of_other.begin, of_other.states = row.begin, list(row.states)

    def draft(self, room: Mapping[Policy, int]) -> Drafts:
        """All drafts grow together: a pass for each token."""
        going: dict[Policy, Policy] = {}
        feeds: list[Feed] = []
        for policy, most in room.items():
            row, ids = self._row(policy), policy.history.ids
            row.adapt(ids)
            row.start, row.ids = ids.size, []
            self.executor.rewind(row.row, row.pairs)
            new = row.take(ids.size - 1 - row.begin)
            if most <= 0 or row.rests or not new or self.executor.context - row.pairs < len(new[0]):
                continue
            going[policy] = policy.drafting_fork()
            feeds.append(_feed(row, ids[row.begin + 1 :].tolist(), new[0]))
            row.pairs, row.begin, row.states = row.pairs + len(new[0]), row.begin + len(new[0]), []
        while going:
            made = [
                (policy, logits, _host(logits.sites[STATES])[-1:])
                for policy, logits in zip(list(going), self.executor.run(feeds), strict=True)
            ]
            feeds = []
            for policy, logits, states in made:
                row, token = self._rows[policy], drafted_token(going[policy], logits)
                if token is not None:
                    row.ids.append(token)
                full = len(row.ids) == min(row.count, room[policy]) or row.row.length == self.executor.context
                if token is None or full:
                    del going[policy]
                else:
                    feeds.append(_feed(row, [token], states))
        return {policy: row.ids for policy in room if (row := self._rows[policy]).ids}

    def close(self, policy: Policy) -> None:
        if policy in self._rows:
            self.executor.close(self._rows.pop(policy).row)

    def _row(self, policy: Policy) -> PairsRow:
        if policy not in self._rows:
            count = policy.settings.num_assistant_tokens or FIRST_DRAFT
            self._rows[policy] = PairsRow(self.executor.open(), count, max(count, LONGEST_DRAFT))
        return self._rows[policy]


class HeadBatchDrafts(EveryPass):
    """What a head drafts for a batch: where checking costs little, for few texts on a machine that waits for its memory."""

    def __init__(self, executor: Executor, longest: int = LONGEST_DRAFT, cost: PassCost | None = None) -> None:
        super().__init__(HeadDrafter(executor), longest)
        self.cost: PassCost = MeasuredCost() if cost is None else cost
        self.drafted_tokens = 0

    def plan(self, lanes: Mapping[int, Lane]) -> dict[int, list[int]]:
        if self.cost.marginal_share(len(lanes)) > HIGHEST_SHARE:
            return {}
        drafts = super().plan(lanes)
        self.drafted_tokens += sum(map(len, drafts.values()))
        return drafts

    def add_pass(self, positions: int, seconds: float) -> None:
        self.cost.add(positions, seconds)


def with_head(about: Description, head: Description, width: int) -> Description:
    """What a text takes where a head follows it: beside the model's row the head's, and the states that wait for it."""
    if not about.cache_bytes_per_token and not about.cache_bytes_per_row:
        return about  # nobody says
    return replace(
        about,
        cache_bytes_per_token=about.cache_bytes_per_token + head.cache_bytes_per_token + width * np.float32().itemsize,
        cache_bytes_per_row=about.cache_bytes_per_row + head.cache_bytes_per_row,
    )


def _feed(row: PairsRow, ids: Sequence[int], states: States) -> Feed:
    """Tokens, each with the states before it."""
    start = row.row.length
    given = Change(scale=0.0, shift=states, positions=range(start, start + len(ids)))
    return Feed(row.row, ids, watch=Watch(frozenset({STATES}), {HEAD_INPUT: given}))


def _host(values: Any) -> States:
    """(batch, tokens, hidden) of one row, of whatever library and on whatever device, as a copy of (tokens, hidden)."""
    array = np.array(values.float().cpu().numpy() if hasattr(values, "cpu") else values, np.float32)
    return array.reshape(-1, array.shape[-1])
