"""With the cache and without: the same tokens, at what cost in time and in memory.

Without a cache, each token is scored by reading the whole text so far again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.engine.protocol import Feed
from glassformer.errors import SettingError
from glassformer.observe.seen import Seen

if TYPE_CHECKING:
    from glassformer.running import Run
    from glassformer.show.page import Page


@dataclass(frozen=True)
class Taken:
    """What one token took, each way."""

    text: str
    length: int  # tokens before it
    cached: float  # seconds
    uncached: float


@dataclass(frozen=True)
class Caching(Seen):
    SCHEMA = "glassformer.caching/1"

    model: str
    prompt_tokens: int
    same: bool  # whether both ways gave the same tokens
    texts: tuple[str, str]  # with the cache, and without
    steps: tuple[Taken, ...]
    seconds: tuple[float, float]
    fed: tuple[int, int]  # tokens that went through the model
    bytes: int  # that the cache held at the end

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.caching import page

        return page(self, everything)

    def __repr__(self) -> str:
        return f"Caching({len(self.steps)} tokens: {self.seconds[0]:.2f} s with, {self.seconds[1]:.2f} s without)"


def caching(run: Run, tell: Callable[[int, int], None] | None = None) -> Caching:
    """A run's text written twice: with the cache, and by reading everything again for each token."""
    model = run.model
    if run.settings.num_beams > 1 or run.negative is not None or run.settings.assistant_model is not None:
        raise SettingError("the cache is compared on one text at a time. Leave out beams, guidance and a model that drafts.")
    ways = [_timed(run, cached, tell) for cached in (True, False)]
    texts = [[text for text, _ in way] for way in ways]
    begin = len(run.ids) if model.start is None else 1
    steps = tuple(
        Taken(text, begin + number, one, other) for number, ((text, one), (_, other)) in enumerate(zip(*ways, strict=False))
    )
    count, other = (len(way) for way in ways)
    held = model.executor.describe().remembers * (begin + count - 1)
    source = 0 if model.start is None else len(run.ids)
    fed = begin + count - 1 + source, sum(begin + number + source for number in range(other))
    return Caching(
        model.name, len(run.ids), texts[0] == texts[1], ("".join(texts[0]), "".join(texts[1])), steps,
        (sum(took for _, took in ways[0]), sum(took for _, took in ways[1])), fed,
        held + source * model.executor.describe().remembers,
    )  # fmt: skip


def _timed(run: Run, cached: bool, tell: Callable[[int, int], None] | None) -> list[tuple[str, float]]:
    """Each token's text, and the seconds that it took."""
    model, executor = run.model, run.model.executor
    (policy, *_) = model.policies(run.recipe, run.ids, seed=run.seed)
    spell, found = model.tokenizer.pieces(), []
    row = executor.open(policy.source)
    ids, step = list(policy.prompt), None
    try:
        while step is None or not step.finish:
            began = time.perf_counter()
            (scores,) = executor.run([Feed(row, ids)])
            step = policy.feed(scores.host())
            took = time.perf_counter() - began
            found.append((spell.feed(step.id) + (spell.finish() if step.finish else ""), took))
            if cached:
                ids = [step.id]
            else:
                ids.append(step.id)
                executor.close(row)
                row = executor.open(policy.source)
            if tell is not None:
                tell(len(found), policy.room)
    finally:
        executor.close(row)
    return found
