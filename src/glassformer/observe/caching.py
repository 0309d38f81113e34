"""With the cache and without: the same tokens, at what cost in time and in memory.

Without a cache, each token is scored by reading the whole text so far again.
"""

from __future__ import annotations

import time

from glassformer.engine.protocol import Feed
from glassformer.ground.errors import SettingError
from glassformer.ground.progress import Progress
from glassformer.observe.protocols import RunLike
from glassformer.views.caching import CacheComparison, TokenTime


def caching(run: RunLike, progress: Progress | None = None) -> CacheComparison:
    """A run's text written twice: with the cache, and by reading everything again for each token."""
    model = run.model
    if run.settings.num_beams > 1 or run.negative is not None or run.settings.assistant_model is not None:
        raise SettingError("the cache is compared on one text at a time. Leave out beams, guidance and a model that drafts.")
    timings = [_time_tokens(run, cached, progress) for cached in (True, False)]
    texts = [[text for text, _ in tokens] for tokens in timings]
    begin = len(run.prompt_ids) if model.start is None else 1
    steps = tuple(
        TokenTime(text, begin + number, cached, uncached)
        for number, ((text, cached), (_, uncached)) in enumerate(zip(*timings, strict=False))
    )
    source = 0 if model.start is None else len(run.prompt_ids)
    in_cache = begin + len(timings[0]) - 1 + source
    fed = in_cache, sum(begin + number + source for number in range(len(timings[1])))
    return CacheComparison(
        model.name, len(run.prompt_ids), texts[0] == texts[1], ("".join(texts[0]), "".join(texts[1])), steps,
        (sum(seconds for _, seconds in timings[0]), sum(seconds for _, seconds in timings[1])), fed,
        in_cache * model.executor.describe().cache_bytes_per_token,
    )  # fmt: skip


def _time_tokens(run: RunLike, cached: bool, progress: Progress | None) -> list[tuple[str, float]]:
    """Each token's text, and the seconds that it took."""
    model, executor = run.model, run.model.executor
    (policy, *_) = model.policies(run.recipe, run.prompt_ids, seed=run.seed)
    detokenizer = model.tokenizer.detokenizer()
    row = executor.open(policy.source)
    timings: list[tuple[str, float]] = []
    ids, step = list(policy.prompt), None
    try:
        while step is None or not step.finish:
            began = time.perf_counter()
            (scores,) = executor.run([Feed(row, ids)])
            step = policy.feed(scores.host())
            seconds = time.perf_counter() - began
            timings.append((detokenizer.feed(step.id) + (detokenizer.finish() if step.finish else ""), seconds))
            if cached:
                ids = [step.id]
            else:
                ids.append(step.id)
                executor.close(row)
                row = executor.open(policy.source)
            if progress is not None:
                progress(len(timings), policy.room)
    finally:
        executor.close(row)
    return timings
