"""A lane: one policy and its row in an executor; a second row where a negative prompt guides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from glassformer.decoding.device_tokens import DeviceTokens, at_position
from glassformer.decoding.policy import Outcome, Policy, Step, StepDetail, candidates_and_logprob
from glassformer.engine.protocol import Choice, Executor, Feed, Logits, Want, common_prefix, copied, open_row
from glassformer.ground.errors import GlassError, NotNumbers
from glassformer.ground.sites import Watch

NO_ID = 0  # any id: a vector takes the place of its embedding
CHUNK = 64  # tokens of a prompt that are scored in one pass
SHORTEST_CHUNK = 64  # tokens that a prompt's last chunk has at least: fewer are not worth a pass
SHARED_BEGINNING = 64  # tokens that are worth waiting for, where another prompt begins with them too


class Lane:
    def __init__(self, executor: Executor, policy: Policy, watch: Watch | None = None) -> None:
        """`watch`: what is read and changed in every pass of its row."""
        self.executor = executor
        self.capabilities = executor.capabilities
        self.policy = policy
        self.watch = watch
        self.feeds = [self._first_feed()]  # what its rows run next
        self.cached_tokens = 0  # of the prompt, that were not read again
        self.prompt_steps: list[Step] = []  # the prompt's own tokens, if prompt_logprobs asks for them
        try:
            if policy.negative is not None:
                source, ids = (None, policy.negative) if policy.source is None else (policy.negative, policy.prompt)
                self.feeds.append(Feed(open_row(executor, source, policy.cache_salt), ids, watch=watch))
            if policy.settings.prompt_logprobs is not None:
                self.prompt_steps = self._score_prompt(policy.settings.prompt_logprobs)
        except BaseException:
            self.close()
            raise

    def _first_feed(self) -> Feed:
        """The prompt, or what its row has not read of it."""
        policy = self.policy
        row, read = policy.row, 0 if policy.row is None else policy.row.length
        if row is None:
            row = open_row(self.executor, policy.source, policy.cache_salt)
        if policy.vectors is None:
            return Feed(row, policy.prompt[read:], watch=self.watch)
        vectors = policy.vectors[read:]
        return Feed(row, policy.prompt[read:] or (NO_ID,) * len(vectors), watch=self.watch, vectors=vectors)

    def fork(self, policy: Policy) -> Self:
        """Another policy's lane after the same prompt, which has been read."""
        clone = copy(self)
        clone.policy = policy
        clone.feeds = [replace(feed, row=self.executor.fork(feed.row)) for feed in self.feeds]
        return clone

    def choose(self, logits: Sequence[Logits], position: int = -1) -> Step:
        """The policy's choice by the logits that the lane's feeds gave; the last step tells the outcome."""
        try:
            step = self.policy.feed(*[row.host(position) for row in logits])
        except NotNumbers as error:
            raise self.located(error) from None
        sites = {} if self.watch is None else logits[0].sites  # otherwise they were read for drafts
        return self.with_outcome(with_sites(step, sites, self.policy.detail, position))

    def located(self, error: NotNumbers) -> NotNumbers:
        """The error, with where the logits began not to be numbers."""
        return NotNumbers(f"{error} {self._first_nan()}")

    @property
    def is_reading(self) -> bool:
        """Whether more than one token is to be fed: a prompt."""
        return len(self.feeds[0].ids) > 1 or (len(self.feeds) > 1 and len(self.feeds[1].ids) > 1)

    @property
    def read_tokens(self) -> int:
        return self.feeds[0].row.length

    def can_take_over(self, other: Lane) -> bool:
        """Whether it can begin with what another lane is about to read, instead of reading it too."""
        cache = self.capabilities.prefix_cache
        if cache is None or self.read_tokens or not (self._is_cuttable and other._is_cuttable):
            return False
        prompt, others, salt = self.policy.prompt, other.policy.prompt, self.policy.cache_salt
        if salt != other.policy.cache_salt or prompt[:SHARED_BEGINNING] != others[:SHARED_BEGINNING]:
            return False
        return common_prefix(prompt[:-1], others) - cache.cached_length(prompt, salt) >= SHARED_BEGINNING

    def next_feeds(self, chunk: int | None = None) -> list[Feed]:
        """What goes through the next pass: of a long prompt as much as ends at a multiple of `chunk` tokens.

        Where a prompt is cut depends on itself alone, so that its numbers do not depend on what else is read.
        """
        if not self._is_cuttable:
            return self.feeds
        feed = self.feeds[0]
        if not feed.row.length and (cache := self.capabilities.prefix_cache) is not None:
            self.cached_tokens = cache.reuse_prefix(feed.row, feed.ids)
            feed = replace(feed, ids=feed.ids[self.cached_tokens :])
            self.feeds = [feed]
        size = self._chunk_size(chunk, feed.row.length, len(feed.ids))
        if size == len(feed.ids):
            return self.feeds
        return [replace(feed, ids=feed.ids[:size], want=Want.NONE, text_length=feed.row.length + len(feed.ids))]

    def next_tokens(self, chunk: int | None = None) -> int:
        """How many tokens `next_feeds` would give."""
        if not self._is_cuttable:
            return sum(len(feed.ids) for feed in self.feeds)
        feed, cached = self.feeds[0], 0
        if not feed.row.length and (cache := self.capabilities.prefix_cache) is not None:
            cached = cache.cached_length(feed.ids, self.policy.cache_salt)
        return self._chunk_size(chunk, feed.row.length + cached, len(feed.ids) - cached)

    def _chunk_size(self, chunk: int | None, start: int, count: int) -> int:
        """How many of the next `count` tokens go through one pass, from a position on."""
        size = count if chunk is None else chunk - start % chunk
        return count if count < size + max(SHORTEST_CHUNK, self.capabilities.min_prefill_tokens) else size

    def has_read(self, feeds: Sequence[Feed]) -> bool:
        """Whether this was all that it had to feed; otherwise the rest is fed next."""
        if feeds[0].want is not Want.NONE:
            return True
        self.feeds = [replace(self.feeds[0], ids=self.feeds[0].ids[len(feeds[0].ids) :])]
        return False

    @property
    def _is_cuttable(self) -> bool:
        """Whether its prompt may be read in chunks: one row of ids, nothing of it watched, its last token alone scored."""
        return len(self.feeds) == 1 and self.watch is None and self.policy.source is None and self.feeds[0].vectors is None

    @property
    def choice(self) -> Choice | None:
        """How an executor may choose its next tokens, if it may."""
        choice, watch = self.policy.choice, self.watch
        if choice is None or len(self.feeds) > 1 or len(self.feeds[0].ids) > 1 or self.feeds[0].vectors is not None:
            return None
        if watch is None:
            return choice
        return None if watch.changes else replace(choice, sites=watch.reads)

    @property
    def draft_room(self) -> int:
        """How many tokens may be drafted for its next pass: 0 where a pass must have one token, or no more fit."""
        if len(self.feeds) > 1 or self.watch is not None:
            return 0
        row, history = self.feeds[0].row, self.policy.history
        room = min(history.room - history.step, self.executor.context - row.length) - 1
        room = min(room, self.capabilities.same_frequencies(row.length + 1))
        least = self.capabilities.min_prefill_tokens
        return max(0, room if least == 1 else min(room, least - 2))  # a draft is checked as steps are computed

    def feed_draft(self, draft: Sequence[int]) -> None:
        """Feed a draft behind the next token, and score each position."""
        self.feeds = [replace(self.feeds[0], ids=(*self.feeds[0].ids, *draft), want=Want.ALL)]

    def take(self, ahead: DeviceTokens) -> Step | None:
        """Take a token that the executor has chosen."""
        step = ahead.take()
        return None if step is None else self.with_outcome(step)

    def return_to(self, length: int) -> None:
        """Drop what its row holds beyond this length, and feed the last token in the next pass.

        Before it those that an executor has dropped too: it may keep less than it was asked to.
        """
        (feed,) = self.feeds
        dropped = length - self.executor.rewind(feed.row, length)
        self.feeds = [Feed(feed.row, tuple(self.policy.history.ids[-1 - dropped :].tolist()), watch=feed.watch)]

    def with_outcome(self, step: Step) -> Step:
        """A step; the last one of a text with what is known of the whole."""
        if step.finish is None:
            return step
        kv, export_kv = None, self.capabilities.export_kv
        if self.policy.detail.kv and export_kv is not None:
            kv = export_kv(self.feeds[0].row, self.policy.history.length - 1)
        outcome = Outcome(self.policy, tuple(self.prompt_steps), cached_tokens=self.cached_tokens, kv=kv)
        return replace(step, outcome=outcome)

    def feed_next(self, token: int) -> None:
        """Feed this token in the next pass."""
        self.feeds = [Feed(feed.row, (token,), watch=feed.watch) for feed in self.feeds]

    def close(self) -> None:
        for feed in self.feeds:
            self.executor.close(feed.row)

    def _score_prompt(self, count: int) -> list[Step]:
        """The log-probabilities of the prompt's own tokens: all but its last are run now, and scored."""
        feed, ids = self.feeds[0], self.policy.prompt
        steps = [Step(ids[0])]
        for start in range(0, len(ids) - 1, CHUNK):
            part = ids[start : min(start + CHUNK, len(ids) - 1)]
            (logits,) = self.executor.run([replace(feed, ids=part, want=Want.ALL, text_length=len(ids))])
            for position, token in enumerate(ids[start + 1 : start + 1 + len(part)]):
                candidates, logprob = candidates_and_logprob(logits.host(position), token, count)
                steps.append(Step(token, candidates=candidates if count else None, logprob=logprob))
        self.feeds[0] = replace(feed, ids=ids[-1:])
        return steps

    def _first_nan(self) -> str:
        """The first site that is not all numbers, found by running the last feeds once more and watching."""
        for feed in self.feeds:
            try:
                self.executor.rewind(feed.row, feed.row.length - len(feed.ids))
                changes = {} if feed.watch is None else feed.watch.changes
                (logits,) = self.executor.run([replace(feed, watch=Watch(frozenset(("*",)), changes))])
            except GlassError:
                continue
            for site, value in logits.sites.items():
                if not _is_finite(value):
                    return f"The first place where they are not is {site}."
        return "No site shows where they begin."


def with_sites(step: Step, sites: Mapping[str, Any], detail: StepDetail, position: int = -1) -> Step:
    """A step with what a watch read in its pass: at all of the pass's tokens, or at the position that predicted it."""
    if detail.passes:
        return replace(step, pass_sites={site: copied(value) for site, value in sites.items()})
    if not sites:
        return step
    at_last = at_position(sites, position) or {}
    return replace(step, sites={site: _host_copy(value) for site, value in at_last.items()})


def _host_copy(value: Any) -> npt.NDArray[np.float32]:
    """An array, of whatever library and on whatever device, as a copy on the host."""
    return np.array(value.float().cpu().numpy() if hasattr(value, "cpu") else value, np.float32)


def _is_finite(value: Any) -> bool:
    """Whether an array, of whatever library, is all finite numbers."""
    return bool((value - value == 0).all())


def run_lanes(executor: Executor, lanes: Sequence[Lane]) -> list[list[Logits]]:
    """One pass over what every lane has to feed; the logits of each lane's feeds."""
    if not lanes:
        return []
    logits = iter(executor.run([feed for lane in lanes for feed in lane.feeds]))
    return [[next(logits) for _ in lane.feeds] for lane in lanes]


def close_all(lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.close()
