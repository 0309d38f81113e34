"""The loop: text generation is classification in a for-loop, and the code says so.

`Loop` is a batch that texts join and leave between passes; `loop` runs given texts through one to their ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glassformer.decoding.lane import Lane, close_all, run_lanes
from glassformer.decoding.policy import Policy, Step
from glassformer.engine.protocol import Executor, Scores


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
        for entries in (self._policies, self._waiting, self._scores):
            entries.pop(id(policy), None)
        if (lane := self._lanes.pop(id(policy), None)) is not None:
            lane.close()
        if orphans := [self._policies[key] for key, first in self._waiting.items() if first == id(policy)]:
            self._waiting = {key: first for key, first in self._waiting.items() if first != id(policy)}
            self.admit(orphans)  # the first of them reads the prompt now

    def step(self) -> Iterator[tuple[Policy, Step]]:
        """One pass: (policy, step) for each text in it. A text that ends leaves, as does one whose choice raises.

        Where somebody stops in the middle of it, or a choice raises, the next call goes on with the same pass.
        """
        if not self._scores:
            self._run()
        for key, policy in list(self._policies.items()):
            if (scores := self._scores.pop(key, None)) is None:  # it joined or left since the pass began
                continue
            try:
                step = self._lanes[key].choose(scores)
            except BaseException:
                self.remove(policy)
                raise
            if step.finish:
                self.remove(policy)
            else:
                self._lanes[key].feed_next(step.id)
            yield policy, step

    def close(self) -> None:
        """Take all texts out."""
        close_all(self._lanes.values())
        self._policies, self._lanes, self._waiting, self._scores = {}, {}, {}, {}

    def _run(self) -> None:
        """Run what every lane has to feed; those that waited for a prompt then fork the lane that has read it."""
        self._scores = dict(zip(self._lanes, run_lanes(self.executor, list(self._lanes.values())), strict=True))
        for key, first in self._waiting.items():
            self._lanes[key] = self._lanes[first].fork(self._policies[key])
            self._scores[key] = self._scores[first]
        self._waiting = {}


def shared_prompts(policies: Sequence[Policy]) -> list[list[Policy]]:
    """Policies, put together where they read the same."""
    groups: dict[object, list[Policy]] = {}
    for policy in policies:
        groups.setdefault(policy.prefix_key, []).append(policy)
    return list(groups.values())
