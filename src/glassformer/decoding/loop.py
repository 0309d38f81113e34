"""The loop: text generation is classification in a for-loop, and the code says so.

`Loop` is a batch that texts join and leave between passes; `loop` runs given texts through one to their ends. Where a pass
has room for some tokens of prompts only, `FairPromptQueue` says whose are read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from glassformer.decoding.device_tokens import DeviceTokens, needed_draws
from glassformer.decoding.lane import Lane, close_all, run_lanes
from glassformer.decoding.policy import Policy, Step
from glassformer.engine.protocol import Choice, ChosenTokens, DeviceSampler, Draws, Executor, Feed, Logits
from glassformer.ground.errors import GlassError
from glassformer.ground.sites import Watch

AHEAD_SECONDS = 0.02  # for all of them together: readers see tokens come, not heaps of them
NO_DRAFTS: Mapping[int, Sequence[int]] = {}
PAUSE = 32  # passes in which policies choose, after an executor could not
WAIT = 2  # passes that a whole chunk puts a prompt back: half of the passes are left to newcomers


class DraftPlanner(Protocol):
    """Who drafts for the texts of a loop."""

    accepted_tokens: int
    shares_with_sampler: bool  # whether the executor may choose tokens where it can, instead of drafts

    def plan(self, lanes: Mapping[int, Lane]) -> dict[int, list[int]]:
        """The drafts for the next pass, which has a token of each of these texts; no empty ones."""

    def add_pass(self, positions: int, seconds: float) -> None:
        """Learn what a pass took."""

    @property
    def reads(self) -> frozenset[str]:
        """The sites that are read of every pass, for `observe`."""

    def observe(self, policy: Policy, start: int, values: Mapping[str, Any]) -> None:
        """What a pass gave of a text's tokens from a position on, at these sites."""

    def follow(self, first: Policy, other: Policy) -> None:
        """Another text begins with all that a first one has read."""

    def forget(self, policy: Policy) -> None:
        """A text has left."""


def loop(
    executor: Executor, policies: Sequence[Policy], watch: Watch | None = None, drafts: DraftPlanner | None = None
) -> Iterator[tuple[int, Step]]:
    """Run every policy's prompt to its end; yields (which, step) as tokens come. `watch`: for every pass of these texts.

    All rows run together, and each leaves when it is done. A prompt that several policies share is read once. Closing
    the iterator early gives the rows' memory back.
    """
    batch = Loop(executor, drafts=drafts)
    indices = {id(policy): index for index, policy in enumerate(policies)}
    try:
        batch.admit(policies, watch)
        while batch.policies:
            for policy, step in batch.step():
                if isinstance(step, GlassError):
                    raise step
                yield indices[id(policy)], step
    finally:
        batch.close()


class Loop:
    """Texts that are written together, a token each in every pass, or more where a draft foresaw them; new ones can join and
    any can leave in between."""

    def __init__(
        self, executor: Executor, prompt_chunk: int | None = None, drafts: DraftPlanner | None = None
    ) -> None:  # fmt: skip
        """`prompt_chunk`: how many tokens of prompts go through one pass, so that a long prompt does not hold up the others;
        without it all of them. `drafts`: who drafts for these texts; the tokens are the same with and without."""
        self.executor = executor
        self._capabilities = executor.capabilities
        self._sampler = self._capabilities.sampler if drafts is None or drafts.shares_with_sampler else None
        self._max_ahead = 1 if self._sampler is None else self._sampler.max_tokens
        self._drafts = drafts
        self._states = Watch(drafts.reads) if drafts is not None and drafts.reads else None  # what drafts are made of
        self._unchecked: dict[int, Sequence[int]] = {}  # what is left of the drafts that were fed in this pass
        self._prompt_chunk = prompt_chunk
        self._prompt_queue = FairPromptQueue(prompt_chunk)
        self._policies: dict[int, Policy] = {}  # by identity, as is all that follows, in the order in which they joined
        self._lanes: dict[int, Lane] = {}
        self._waiting: dict[int, int] = {}  # for another's lane, which reads the same prompt in the next pass
        self._logits: dict[int, list[Logits]] = {}  # of the last pass, where no token was chosen by them yet
        self._ahead: dict[int, DeviceTokens] = {}
        self._queued: QueuedTokens | None = None  # that come after these
        self._ahead_count = 1  # tokens that the executor chooses next
        self._last_time = 0.0  # when the last ones came
        self._pause = 0  # passes until it chooses again
        self._unchosen: list[int] = []  # texts that get a token before the next pass

    @property
    def policies(self) -> list[Policy]:
        """Those that are being written, in the order in which they joined."""
        return list(self._policies.values())

    def admit(self, policies: Sequence[Policy], watch: Watch | None = None, client: Hashable = None) -> None:
        """Let texts join: their prompts go through with the next pass. A prompt that several of them share is read once.

        `watch`: what is read and changed in every pass of these texts; `client`: whose they are, for clients take turns
        where not all prompts can be read at once.
        """
        groups = shared_prompts(policies)
        lanes: dict[int, Lane] = {}
        try:
            for first, *_ in groups:
                lanes[id(first)] = Lane(self.executor, first, watch)
        except BaseException:
            close_all(lanes.values())
            raise
        self._lanes.update(lanes)
        for key in lanes:
            self._prompt_queue.join(key, client)
        self._policies.update({id(policy): policy for policy in policies})
        self._waiting.update({id(other): id(first) for first, *others in groups for other in others})

    def remove(self, policy: Policy) -> None:
        """Take a text out before its end, and give its rows' memory back."""
        for entries in (self._policies, self._waiting, self._logits, self._ahead, self._unchecked):
            entries.pop(id(policy), None)
        if self._drafts is not None:
            self._drafts.forget(policy)
        self._forget_queued(id(policy))
        self._unchosen = [key for key in self._unchosen if key != id(policy)]
        lane, client = self._lanes.pop(id(policy), None), self._prompt_queue.leave(id(policy))
        if lane is not None:
            lane.close()
        if orphans := [self._policies[key] for key, first in self._waiting.items() if first == id(policy)]:
            self._waiting = {key: first for key, first in self._waiting.items() if first != id(policy)}
            self.admit(orphans, None if lane is None else lane.watch, client)  # the first of them reads the prompt now

    def step(self) -> Iterator[tuple[Policy, Step | GlassError]]:
        """One token for each text whose prompt has been read, and those that a draft foresaw: (policy, step).

        A text that ends leaves, as does one that cannot go on, with its error in place of a step.

        Where somebody stops in the middle of it, the next call goes on with the same pass.
        """
        if not self._unchosen:
            self._run()
        while self._unchosen:
            key = self._unchosen.pop(0)
            policy = self._policies[key]
            step: Step | GlassError
            try:
                step = self._choose(key)
            except GlassError as error:
                step = error
            except BaseException:
                self.remove(policy)
                raise
            if isinstance(step, GlassError) or step.finish:
                self.remove(policy)
            elif key in self._unchecked:
                self._unchosen.insert(0, key)
            yield policy, step

    def close(self) -> None:
        """Take all texts out."""
        self._prompt_queue = FairPromptQueue(self._prompt_chunk)
        close_all(self._lanes.values())
        if self._drafts is not None:
            for policy in self._policies.values():
                self._drafts.forget(policy)
        self._policies, self._lanes, self._waiting, self._logits, self._ahead, self._unchecked = {}, {}, {}, {}, {}, {}
        self._unchosen, self._queued = [], None

    def _choose(self, key: int) -> Step:
        """A text's next token: the one that the executor chose, or the policy's choice by the logits."""
        lane = self._lanes[key]
        if (ahead := self._ahead.get(key)) is not None:
            step = lane.take(ahead)
            if step is not None and ahead.left:
                return step
            del self._ahead[key]
            if step is not None:
                lane.feed_next(step.id)
                return step
            self._pause, self._ahead_count = PAUSE, 1
            self._forget_queued(key)
            lane.return_to(ahead.length)
            (self._logits[key],) = run_lanes(self.executor, [lane])  # to choose, or to say what is wrong with them
        if key in self._unchecked:
            return self._check_draft(key)
        step = lane.choose(self._logits.pop(key))
        if not step.finish:
            lane.feed_next(step.id)
        return step

    def _check_draft(self, key: int) -> Step:
        """A text's next token, by the logits after as much of its draft as came true; with the first that did not, the rest
        is dropped."""
        lane, rest = self._lanes[key], self._unchecked.pop(key)
        step = lane.choose(self._logits[key], -1 - len(rest))
        foreseen = bool(rest) and step.id == rest[0]
        if foreseen:
            assert self._drafts is not None
            self._drafts.accepted_tokens += 1
            step, rest = replace(step, drafted=True), rest[1:]
            if not step.finish:
                self._unchecked[key] = rest
                return step
        lane.return_to(lane.read_tokens - len(rest))
        del self._logits[key]
        return step

    def _run(self) -> None:
        """Run what every lane has to feed; those that waited for a prompt then fork the lane that has read it."""
        sampler = self._sampler if not self._pause and not self._waiting else None
        self._pause = max(self._pause - 1, 0)
        self._take_queued(sampler)
        queued = self._queued.texts if self._queued is not None else ()
        idle = {key: lane for key, lane in self._lanes.items() if key not in self._ahead and key not in queued}
        prompts = self._separate_prompts(idle)
        steps = {key: lane for key, lane in idle.items() if key not in prompts}
        choices = [lane.choice for lane in steps.values()] if sampler is not None else []
        known = [choice for choice in choices if sampler is not None and choice is not None and sampler.knows(choice)]
        if len(known) < len(steps):
            sampler = None  # some have to be chosen by their policies
        drafts = self._plan_drafts(steps) if sampler is None or sampler.enqueue is None else {}
        if sampler is None or drafts:
            self._run_pass(idle, drafts)
        else:
            if self._queued is None:
                if steps:
                    self._decode_ahead(sampler, steps, known)
                chosen = {key: ahead.left for key, ahead in self._ahead.items()}
                self._queued = self._queue_behind(sampler, chosen, besides=prompts)
            self._run_pass(prompts)
        for key, first in [*self._waiting.items()]:
            if first in self._logits:
                del self._waiting[key]
                self._lanes[key] = self._lanes[first].fork(self._policies[key])
                if self._states is not None and self._drafts is not None:
                    self._drafts.follow(self._policies[first], self._policies[key])
                self._logits[key] = self._logits[first]
        self._unchosen = [key for key in self._policies if key in self._logits or key in self._ahead]

    def _separate_prompts(self, lanes: dict[int, Lane]) -> dict[int, Lane]:
        """The prompts among what is to be fed, where the executor computes them apart from steps anyway.

        There the others' tokens need not wait for Python because somebody's prompt is read.
        """
        if self._capabilities.min_prefill_tokens == 1:
            return {}
        return {key: lane for key, lane in lanes.items() if lane.is_reading or not lane.read_tokens}

    def _plan_drafts(self, lanes: dict[int, Lane]) -> dict[int, list[int]]:
        """The drafts for the next pass; none where the executor has chosen some texts' next tokens already."""
        if self._drafts is None or self._ahead or self._queued is not None:
            return {}
        return self._drafts.plan({key: lane for key, lane in lanes.items() if lane.read_tokens and not lane.is_reading})

    def _run_pass(self, lanes: dict[int, Lane], drafts: Mapping[int, Sequence[int]] = NO_DRAFTS) -> None:
        """One pass: a token for each text, its draft behind it, and as much of the prompts as may go through."""
        steps = [key for key, lane in lanes.items() if not lane.is_reading]
        prompts = self._prompt_feeds({key: lane for key, lane in lanes.items() if lane.is_reading})
        for key, draft in drafts.items():
            lanes[key].feed_draft(draft)
        self._unchecked.update(drafts)
        feeds = [*((key, lanes[key].feeds) for key in steps), *prompts]
        began = time.perf_counter()
        logits = iter(self.executor.run([self._observed(feed) for _, parts in feeds for feed in parts]) if feeds else ())
        if self._drafts is not None and steps and not prompts:
            positions = sum(len(feed.ids) for _, parts in feeds for feed in parts)
            self._drafts.add_pass(positions, time.perf_counter() - began)
        for key, parts in feeds:
            part_logits = [next(logits) for _ in parts]
            if self._observed(parts[0]) is not parts[0]:
                assert self._drafts is not None
                start = parts[0].row.length - len(parts[0].ids)
                self._drafts.observe(self._policies[key], start, part_logits[0].sites)
            if lanes[key].has_read(parts):
                self._logits[key] = part_logits

    def _observed(self, feed: Feed) -> Feed:
        """A feed, read where drafts are made of it; one that somebody watches gets none."""
        return feed if self._states is None or feed.watch is not None else replace(feed, watch=self._states)

    def _prompt_feeds(self, lanes: dict[int, Lane]) -> list[tuple[int, list[Feed]]]:
        """What goes through the next pass of these prompts.

        One that begins like another waits until that beginning has been read, if it can be taken over then.
        """
        feeds: list[tuple[int, list[Feed]]] = []
        room = self._prompt_chunk
        for key in self._prompt_queue.order(lanes):
            if any(lanes[key].can_take_over(lanes[other]) for other, _ in feeds):
                continue
            tokens = lanes[key].next_tokens(self._prompt_chunk)
            if room is not None and feeds and tokens > room:
                continue
            feeds.append((key, lanes[key].next_feeds(self._prompt_chunk)))
            self._prompt_queue.read(key, tokens)
            if room is not None:
                room -= tokens
                if room <= 0:
                    break
        return feeds

    def _decode_ahead(self, sampler: DeviceSampler, lanes: dict[int, Lane], choices: Sequence[Choice]) -> None:
        """Let the executor choose the next tokens of these lanes: few at first, so that a text begins at once.

        Where others are ahead already, as many as make all run out of them together, and go on in one batch.
        """
        feeds, policies = [lane.feeds[0] for lane in lanes.values()], [lane.policy for lane in lanes.values()]
        fed, lengths = [feed.ids[0] for feed in feeds], [feed.row.length for feed in feeds]
        together = max((ahead.left for ahead in self._ahead.values()), default=self._ahead_count)
        count = min(together, max(map(tokens_left, policies)), self.executor.context - max(lengths))
        draws = np.stack([needed_draws(policy, count) for policy in policies])
        began = time.perf_counter()
        texts = sampler.decode([feed.row for feed in feeds], fed, choices, draws)
        if self._drafts is not None:
            self._drafts.add_pass(len(lanes), (time.perf_counter() - began) / count)
        self._set_ahead_count(count, began)
        self._ahead.update(zip(lanes, map(DeviceTokens, policies, texts, draws, lengths), strict=True))

    def _set_ahead_count(self, count: int, began: float) -> None:
        """As many as come in time; at least half as many as the last ones, for prompts may be read in between."""
        now = time.perf_counter()
        in_time = int(AHEAD_SECONDS * count / max(now - max(began, self._last_time), 1e-9))
        self._last_time = now
        count = min(max(in_time, self._ahead_count // 2), 2 * self._ahead_count)
        self._ahead_count = max(1, min(count, self._max_ahead))

    def _queue_behind(
        self, sampler: DeviceSampler, chosen: Mapping[int, int], besides: Container[int] = ()
    ) -> QueuedTokens | None:
        """Let the executor go on, while the tokens that it chose before are taken: where all texts have as many of them.

        `chosen`: how many tokens a text has to take before these. One that has none begins with these, unless it is one of
        `besides`, which run in this pass.
        """
        if sampler.enqueue is None or len(set(chosen.values())) != 1:
            return None
        lanes = {
            key: lane
            for key, lane in self._lanes.items()
            if key not in besides and not lane.is_reading and tokens_left(lane.policy) > chosen.get(key, 0)
        }
        choices = [choice for lane in lanes.values() if (choice := lane.choice) is not None and sampler.knows(choice)]
        if not lanes or len(choices) < len(lanes):
            return None
        rows, before = [lane.feeds[0].row for lane in lanes.values()], [chosen.get(key, 0) for key in lanes]
        lengths = [row.length for row in rows]
        left = max(tokens_left(lane.policy) - skipped for lane, skipped in zip(lanes.values(), before, strict=True))
        count = min(self._ahead_count, left, self.executor.context - max(lengths))
        draws = np.stack(
            [needed_draws(lane.policy, count, skipped) for lane, skipped in zip(lanes.values(), before, strict=True)]
        )
        tokens = [None if key in chosen else lane.feeds[0].ids[0] for key, lane in lanes.items()]
        began = time.perf_counter()
        try:
            wait = sampler.enqueue(rows, tokens, choices, draws)
        except GlassError:
            return None  # the texts will say so when they get there
        return QueuedTokens(dict(zip(lanes, zip(lengths, draws, strict=True), strict=True)), [*lanes], count, wait, began)

    def _take_queued(self, sampler: DeviceSampler | None) -> None:
        """Wait for the tokens that were queued, if those before them have been taken; first queue more behind them."""
        queued = self._queued
        if queued is None or self._ahead.keys() & queued.texts.keys():
            return
        self._queued = None
        if not queued.texts:
            return
        if sampler is not None:
            self._queued = self._queue_behind(sampler, dict.fromkeys(queued.texts, queued.count))
        texts = dict(zip(queued.order, queued.wait(), strict=True))
        for key, (length, draws) in queued.texts.items():
            self._ahead[key] = DeviceTokens(self._policies[key], texts[key], draws, length)
        self._set_ahead_count(queued.count, queued.began)

    def _forget_queued(self, key: int) -> None:
        """A text does not take what was queued for it."""
        if self._queued is not None:
            self._queued.texts.pop(key, None)


@dataclass
class QueuedTokens:
    """Tokens that an executor is choosing, which follow the last that it chose."""

    texts: dict[int, tuple[int, Draws]]  # that will take them: the length of each row before them, and their draws
    order: list[int]  # of the texts when they were queued
    count: int  # of each
    wait: Callable[[], Sequence[ChosenTokens]]
    began: float


def tokens_left(policy: Policy) -> int:
    """How many more a text may have."""
    return policy.room - policy.history.step


def shared_prompts(policies: Sequence[Policy]) -> list[list[Policy]]:
    """Policies, put together where they read the same."""
    groups: dict[object, list[Policy]] = {}
    for policy in policies:
        groups.setdefault(policy.prefix_key, []).append(policy)
    return list(groups.values())


class FairPromptQueue:
    """The order in which prompts are read, each of some client.

    A prompt is due when it joins. When a part of it has been read it is due again later, in `WAIT` passes for each whole
    chunk, and so is every other prompt of the same client. Who is overdue for longest goes first. So a short prompt does not
    wait for a long one to be read, a long one gets its turn however many short ones come, and a client with many prompts
    takes no more than one with a single one.
    """

    def __init__(self, chunk: int | None) -> None:
        """`chunk`: tokens of prompts that a pass has room for; None: for all."""
        self._chunk = math.inf if chunk is None else chunk
        self._passes = 0
        self._due: dict[int, float] = {}  # by prompt: the index of a pass
        self._client_due: dict[Hashable, float] = {}
        self._clients: dict[int, Hashable] = {}
        self._client_tokens: dict[Hashable, int] = {}  # that go through this pass

    def join(self, key: int, client: Hashable) -> None:
        self._due[key] = self._passes
        self._clients[key] = client

    def leave(self, key: int) -> Hashable:
        """Forget a prompt, which has been read or is not wanted any more; whose it was."""
        self._due.pop(key, None)
        return self._clients.pop(key, None)

    def order(self, keys: Iterable[int]) -> list[int]:
        """These prompts, the next to be read first: for one more pass."""
        self._passes += 1
        self._client_tokens.clear()
        self._client_due = {client: due for client, due in self._client_due.items() if due > self._passes}
        return sorted(keys, key=lambda key: (self._client_due.get(self._clients[key], self._passes), self._due[key]))

    def read(self, key: int, tokens: int) -> None:
        """This many tokens of a prompt go through this pass."""
        client = self._clients[key]
        self._client_tokens[client] = self._client_tokens.get(client, 0) + tokens
        self._due[key] = self._after(tokens)
        self._client_due[client] = self._after(self._client_tokens[client])

    def _after(self, tokens: int) -> float:
        """When somebody is due again of whom this many tokens are read in this pass."""
        return self._passes + WAIT * tokens / self._chunk
