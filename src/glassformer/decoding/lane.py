"""A lane: one policy and its row in an executor; a second row where a negative prompt guides it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, Self

from glassformer.decoding.policy import Policy, Step, likelihood
from glassformer.engine.protocol import Executor, Feed, Scores, Want
from glassformer.errors import GlassError, NotNumbers
from glassformer.sites import Watch

CHUNK = 64  # tokens of a prompt that are scored in one pass


class Lane:
    def __init__(self, executor: Executor, policy: Policy) -> None:
        self.executor = executor
        self.policy = policy
        self.feeds = [Feed(executor.open(policy.source), policy.prompt)]  # what its rows run next
        try:
            if policy.negative is not None:
                source, ids = (None, policy.negative) if policy.source is None else (policy.negative, policy.prompt)
                self.feeds.append(Feed(executor.open(source), ids))
            if policy.settings.prompt_logprobs is not None:
                self._look_behind(policy.settings.prompt_logprobs)
        except BaseException:
            self.close()
            raise

    def twin(self, policy: Policy) -> Self:
        """Another policy's lane after the same prompt, which has been read."""
        other = copy(self)
        other.policy = policy
        other.feeds = [replace(feed, row=self.executor.fork(feed.row)) for feed in self.feeds]
        policy.behind = self.policy.behind
        return other

    def take(self, found: Sequence[Scores], position: int = -1) -> Step:
        """Choose by the scores that its feeds gave."""
        with self.blaming():
            return self.policy.feed(*(scores.host(position) for scores in found))

    @contextmanager
    def blaming(self) -> Iterator[None]:
        """Where scores turn out not to be numbers, say where that began."""
        try:
            yield
        except NotNumbers as error:
            raise NotNumbers(f"{error} {self._blame()}") from None

    def go_on(self, token: int) -> None:
        """Feed this token next."""
        self.feeds = [Feed(feed.row, (token,)) for feed in self.feeds]

    def close(self) -> None:
        for feed in self.feeds:
            self.executor.close(feed.row)

    def _look_behind(self, count: int) -> None:
        """The log-probabilities of the prompt's own tokens: all but its last are run now, and scored."""
        feed, ids = self.feeds[0], self.policy.prompt
        self.policy.behind = [Step(ids[0])]
        for start in range(0, len(ids) - 1, CHUNK):
            part = ids[start : min(start + CHUNK, len(ids) - 1)]
            (scores,) = self.executor.run([Feed(feed.row, part, Want.ALL)])
            for position, token in enumerate(ids[start + 1 : start + 1 + len(part)]):
                candidates, logprob = likelihood(scores.host(position), token, count)
                self.policy.behind.append(Step(token, candidates=candidates if count else None, logprob=logprob))
        self.feeds[0] = replace(feed, ids=ids[-1:])

    def _blame(self) -> str:
        """The first site that is not all numbers, found by running the last feeds once more and watching."""
        for feed in self.feeds:
            try:
                self.executor.rewind(feed.row, feed.row.length - len(feed.ids))
                (scores,) = self.executor.run([replace(feed, watch=Watch(frozenset(("*",))))])
            except GlassError:
                continue
            for site, value in scores.sites.items():
                if not _numbers(value):
                    return f"The first place where they are not is {site}."
        return "No site shows where they begin."


def _numbers(value: Any) -> bool:
    """Whether an array, of whatever library, is all finite numbers."""
    return bool((value - value == 0).all())


def close_all(lanes: Iterable[Lane]) -> None:
    for lane in lanes:
        lane.close()
