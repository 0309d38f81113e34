"""What watching costs: a text with ten candidates and what each rule did to them at every token, beside the text alone.

    python bench/watched.py [--model smollm2] [--rounds 20] [--new 64]

Both go through the public face and take turns, round by round. The figures are medians of a token after the first; the ratio
is the median of the rounds' own ratios, so that a slower minute of the machine falls on both sides. A ratio of 1 means that
watching costs nothing. Beside it the same for one layer's attention pattern, which comes with each token's scores.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import time
from collections.abc import Callable
from typing import Any

import glassformer
from common import report
from glassformer.engine.protocol import Feed
from glassformer.ground.sites import Watch

PROMPT = "The keeper of the lighthouse told me how the storm came in that night: first the wind, then the rain, and then "
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled, temperature 0.7, top_k 50, top_p 0.95": {
        "do_sample": True, "temperature": 0.7, "top_k": 50, "top_p": 0.95, "seed": 1,
    },
}  # fmt: skip
PATTERN = "blocks.3.attention.pattern"


def compare(what: str, plain: Callable[[], float], watched: Callable[[], float], rounds: int) -> dict[str, Any]:
    """Both take turns; each gives its seconds for a token. The first turn warms up."""
    pairs = [(plain(), watched()) for _ in range(rounds + 1)][1:]
    alone, looked = (statistics.median(column) for column in zip(*pairs, strict=True))
    return {
        "what": what,
        "unwatched ms": round(alone * 1e3, 3),
        "watched ms": round(looked * 1e3, 3),
        "watched ÷ unwatched": round(statistics.median(first / second for first, second in pairs), 3),
    }


def texts(model: glassformer.Model, rounds: int, new: int) -> list[dict[str, Any]]:
    """Whole texts: `stream` beside the same with a look at ten candidates."""

    def seconds_per_token(look: int, settings: dict[str, Any]) -> float:
        run = model.start(PROMPT, raw=True, max_new_tokens=new, eos_token_id=None, **settings)
        for _ in model.generate(run, look=look):
            pass
        assert (run.steps[-1].waterfall is not None) == bool(look)
        return 1 / run.tokens_per_second

    return [
        compare(
            f"ten candidates with their rules, {name}",
            lambda settings=settings: seconds_per_token(0, settings),  # type: ignore[misc]
            lambda settings=settings: seconds_per_token(10, settings),  # type: ignore[misc]
            rounds,
        )
        for name, settings in STRATEGIES.items()
    ]


def patterns(model: glassformer.Model, rounds: int, new: int, length: int) -> dict[str, Any]:
    """Tokens after a prompt of some length, one layer's attention pattern read at each."""
    executor = model.executor
    prompt = [100 + number % 1000 for number in range(length)]

    def seconds_per_token(watch: Watch | None) -> float:
        row = executor.open()
        executor.run([Feed(row, prompt)])
        started = time.perf_counter()
        for _ in range(new):
            (scores,) = executor.run([Feed(row, [9], watch=watch)])
            scores.host().argmax()
            assert watch is None or scores.sites[PATTERN].shape[-1] == row.length
        seconds = time.perf_counter() - started
        executor.close(row)
        return seconds / new

    watch = Watch(frozenset({PATTERN}))
    name = f"one layer's attention pattern, after {length} tokens"
    return compare(name, lambda: seconds_per_token(None), lambda: seconds_per_token(watch), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--new", type=int, default=64)
    arguments = parser.parse_args()
    model = glassformer.load(arguments.model, executor="cpu")
    logging.getLogger("glassformer").setLevel(logging.ERROR)  # what is written does not matter here
    rows = texts(model, arguments.rounds, arguments.new)
    rows += [patterns(model, arguments.rounds, arguments.new, length) for length in (100, 1000)]
    report("watched ÷ unwatched", rows)


if __name__ == "__main__":
    main()
