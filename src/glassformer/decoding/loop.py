"""The loop: text generation is classification in a for-loop, and the code says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from glassformer.decoding.lane import Lane, close_all
from glassformer.decoding.policy import Policy, Step
from glassformer.engine.protocol import Executor, Scores


def loop(executor: Executor, policies: Sequence[Policy]) -> Iterator[tuple[int, Step]]:
    """Run every policy's prompt to its end; yields (which, step) as tokens come.

    All rows run together, and each leaves when it is done. A prompt that several policies share is read once. Closing
    the iterator early gives the rows' memory back.
    """
    lanes: dict[int, Lane] = {}
    try:
        found = read(executor, policies, lanes)
        while found:
            for number in sorted(found):
                step = lanes[number].take(found[number])
                if step.finish:
                    lanes.pop(number).close()
                else:
                    lanes[number].go_on(step.id)
                yield number, step
            found = scored(executor, lanes)
    finally:
        close_all(lanes.values())


def read(executor: Executor, policies: Sequence[Policy], lanes: dict[int, Lane]) -> dict[int, Sequence[Scores]]:
    """Read all prompts, and put a lane for each policy into `lanes`; the first scores for each."""
    groups = alike(policies)
    for first, *_ in groups:
        lanes[first] = Lane(executor, policies[first])
    found = scored(executor, lanes)
    for first, *others in groups:
        lanes.update({other: lanes[first].twin(policies[other]) for other in others})
        found.update(dict.fromkeys(others, found[first]))
    return found


def alike(policies: Sequence[Policy]) -> list[list[int]]:
    """The numbers of policies, put together where they read the same."""
    groups: dict[object, list[int]] = {}
    for number, policy in enumerate(policies):
        groups.setdefault(policy.reads, []).append(number)
    return list(groups.values())


def scored(executor: Executor, lanes: Mapping[int, Lane]) -> dict[int, Sequence[Scores]]:
    """One pass over what every lane has to feed; what it gave, for each lane."""
    if not lanes:
        return {}
    scores = iter(executor.run([feed for lane in lanes.values() for feed in lane.feeds]))
    return {number: [next(scores) for _ in lane.feeds] for number, lane in lanes.items()}
