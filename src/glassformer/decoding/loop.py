"""The loop: text generation is classification in a for-loop, and the code says so.

`Loop` is a batch that texts join and leave between passes; `loop` runs given texts through one to their ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glassformer.decoding.lane import Lane, close_all, run_lanes
from glassformer.decoding.policy import Policy, Step
from glassformer.engine.protocol import NOT_NUMBERS, Executor, GreedyDecoder, Scores, greedy_decoder, max_ahead

AHEAD_SECONDS = 0.02  # for all of them together: readers see tokens come, not heaps of them


def loop(executor: Executor, policies: Sequence[Policy]) -> Iterator[tuple[int, Step]]:
    """Run every policy's prompt to its end; yields (which, step) as tokens come.

    All rows run together, and each leaves when it is done. A prompt that several policies share is read once. Closing
    the iterator early gives the rows' memory back.
    """
    batch = Loop(executor)
    numbers = {id(policy): number for number, policy in enumerate(policies)}
    try:
        batch.admit(policies)
        while batch.policies:
            for policy, step in batch.step():
                yield numbers[id(policy)], step
    finally:
        batch.close()


class Loop:
    """Texts that are written together, a token each in every pass; new ones can join and any can leave in between."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._policies: dict[int, Policy] = {}  # by identity, as is all that follows, in the order in which they joined
        self._lanes: dict[int, Lane] = {}
        self._waiting: dict[int, int] = {}  # for another's lane, which reads the same prompt in the next pass
        self._scores: dict[int, list[Scores]] = {}  # of the last pass, where no token was chosen by them yet
        self._ahead: dict[int, ChosenAhead] = {}
        self._ahead_count = 1  # tokens that the executor chooses next
        self._unchosen: list[int] = []  # texts that get a token before the next pass

    @property
    def policies(self) -> list[Policy]:
        """Those that are being written, in the order in which they joined."""
        return list(self._policies.values())

    def admit(self, policies: Sequence[Policy]) -> None:
        """Let texts join: their prompts go through with the next pass. A prompt that several of them share is read once."""
        groups = shared_prompts(policies)
        lanes: dict[int, Lane] = {}
        try:
            for first, *_ in groups:
                lanes[id(first)] = Lane(self.executor, first)
        except BaseException:
            close_all(lanes.values())
            raise
        self._lanes.update(lanes)
        self._policies.update({id(policy): policy for policy in policies})
        self._waiting.update({id(other): id(first) for first, *others in groups for other in others})

    def remove(self, policy: Policy) -> None:
        """Take a text out before its end, and give its rows' memory back."""
        for entries in (self._policies, self._waiting, self._scores, self._ahead):
            entries.pop(id(policy), None)
        self._unchosen = [key for key in self._unchosen if key != id(policy)]
        if (lane := self._lanes.pop(id(policy), None)) is not None:
            lane.close()
        if orphans := [self._policies[key] for key, first in self._waiting.items() if first == id(policy)]:
            self._waiting = {key: first for key, first in self._waiting.items() if first != id(policy)}
            self.admit(orphans)  # the first of them reads the prompt now

    def step(self) -> Iterator[tuple[Policy, Step]]:
        """One token for each text: (policy, step). A text that ends leaves, as does one whose choice raises.

        Where somebody stops in the middle of it, or a choice raises, the next call goes on with the same pass.
        """
        if not self._unchosen:
            self._run()
        while self._unchosen:
            key = self._unchosen.pop(0)
            policy = self._policies[key]
            try:
                step = self._choose(key)
            except BaseException:
                self.remove(policy)
                raise
            if step.finish:
                self.remove(policy)
            yield policy, step

    def close(self) -> None:
        """Take all texts out."""
        close_all(self._lanes.values())
        self._policies, self._lanes, self._waiting, self._scores, self._ahead = {}, {}, {}, {}, {}
        self._unchosen = []

    def _choose(self, key: int) -> Step:
        """A text's next token: the one that the executor chose, or the policy's choice by the scores."""
        lane = self._lanes[key]
        if (ahead := self._ahead.get(key)) is not None:
            token = ahead.ids.pop(0)
            if token != NOT_NUMBERS:
                ahead.length, ahead.last = ahead.length + 1, token
                if not ahead.ids:
                    del self._ahead[key]
                    lane.feed_next(token)
                return lane.accept(token)
            del self._ahead[key]
            lane.return_to(ahead.length, ahead.last)
            (self._scores[key],) = run_lanes(self.executor, [lane])  # to say what is wrong with them
        step = lane.choose(self._scores.pop(key))
        if not step.finish:
            lane.feed_next(step.id)
        return step

    def _run(self) -> None:
        """Run what every lane has to feed; those that waited for a prompt then fork the lane that has read it."""
        idle = {key: lane for key, lane in self._lanes.items() if key not in self._ahead}
        decode = greedy_decoder(self.executor)
        if decode is not None and idle and all(lane.can_decode_ahead for lane in idle.values()):
            self._decode_ahead(decode, idle)
        else:
            self._scores.update(zip(idle, run_lanes(self.executor, list(idle.values())), strict=True))
        for key, first in self._waiting.items():
            self._lanes[key] = self._lanes[first].fork(self._policies[key])
            self._scores[key] = self._scores[first]
        self._waiting = {}
        self._unchosen = list(self._policies)

    def _decode_ahead(self, decode: GreedyDecoder, lanes: dict[int, Lane]) -> None:
        """Let the executor choose the next tokens of these lanes: few at first, so that a text begins at once.

        Where others are ahead already, so many that all run out of them together, and go on in one batch.
        """
        feeds = [lane.feeds[0] for lane in lanes.values()]
        count = min(lane.policy.room - lane.policy.history.step for lane in lanes.values())
        count = min(count, max((len(ahead.ids) for ahead in self._ahead.values()), default=self._ahead_count))
        fed, lengths = [feed.ids[0] for feed in feeds], [feed.row.length for feed in feeds]
        began = time.perf_counter()
        ids = decode([feed.row for feed in feeds], fed, count)
        in_time = int(AHEAD_SECONDS * count / max(time.perf_counter() - began, 1e-9))
        self._ahead_count = max(1, min(2 * self._ahead_count, max_ahead(self.executor), in_time))
        self._ahead.update(zip(lanes, map(ChosenAhead, ids.tolist(), lengths, fed), strict=True))


@dataclass
class ChosenAhead:
    """Tokens of a text that the executor has chosen, and that its policy has not seen yet."""

    ids: list[int]
    length: int  # of the row, before the token that the first of them follows
    last: int  # that token


def shared_prompts(policies: Sequence[Policy]) -> list[list[Policy]]:
    """Policies, put together where they read the same."""
    groups: dict[object, list[Policy]] = {}
    for policy in policies:
        groups.setdefault(policy.prefix_key, []).append(policy)
    return list(groups.values())
