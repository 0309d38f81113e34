"""The loop: text generation is classification in a for-loop, and the code says so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glassformer.decoding.policy import Policy, Step
from glassformer.engine.protocol import Executor, Feed


def loop(executor: Executor, policies: Sequence[Policy]) -> Iterator[tuple[int, Step]]:
    """Run every policy's prompt to its end; yields (which, step) as tokens come.

    All rows run together, and each leaves when it is done. Closing the iterator early gives their memory back.
    """
    feeds: dict[int, Feed] = {}
    try:
        for number, policy in enumerate(policies):
            feeds[number] = Feed(executor.open(policy.source), policy.prompt)
        while feeds:
            scores = executor.run(list(feeds.values()))
            for (number, feed), found in zip(list(feeds.items()), scores, strict=True):
                step = policies[number].feed(found.host())
                if step.finish:
                    executor.close(feeds.pop(number).row)
                else:
                    feeds[number] = Feed(feed.row, (step.id,))
                yield number, step
    finally:
        for feed in feeds.values():
            executor.close(feed.row)
