"""With the cache and without: the same tokens, at what cost in time and in memory.

Without a cache, each token is scored by reading the whole text so far again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from glassformer.engine.protocol import Feed
from glassformer.errors import SettingError
from glassformer.observe.protocols import RunLike
from glassformer.views.caching import CacheComparison, TokenTime


def caching(run: RunLike, progress: Callable[[int, int], None] | None = None) -> CacheComparison:
    """A run's text written twice: with the cache, and by reading everything again for each token."""
    model = run.model
    if run.settings.num_beams > 1 or run.negative is not None or run.settings.assistant_model is not None:
        raise SettingError("the cache is compared on one text at a time. Leave out beams, guidance and a model that drafts.")
    ways = [_timed(run, cached, progress) for cached in (True, False)]
    texts = [[text for text, _ in way] for way in ways]
    begin = len(run.ids) if model.start is None else 1
    steps = tuple(
        TokenTime(text, begin + number, one, other)
        for number, ((text, one), (_, other)) in enumerate(zip(*ways, strict=False))
    )
    count, other = (len(way) for way in ways)
    held = model.executor.describe().remembers * (begin + count - 1)
    source = 0 if model.start is None else len(run.ids)
    fed = begin + count - 1 + source, sum(begin + number + source for number in range(other))
    return CacheComparison(
        model.name, len(run.ids), texts[0] == texts[1], ("".join(texts[0]), "".join(texts[1])), steps,
        (sum(took for _, took in ways[0]), sum(took for _, took in ways[1])), fed,
        held + source * model.executor.describe().remembers,
    )  # fmt: skip


def _timed(run: RunLike, cached: bool, progress: Callable[[int, int], None] | None) -> list[tuple[str, float]]:
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
            if progress is not None:
                progress(len(found), policy.room)
    finally:
        executor.close(row)
    return found
