"""With the cache and without: the same tokens, at what cost in time and in memory.

Without a cache, each token is scored by reading the whole text so far again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from glassformer.engine.protocol import Feed
from glassformer.ground.errors import SettingError
from glassformer.ground.operations import operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Page, PagePart, Paragraph, Table
from glassformer.page.format import format_bytes, format_seconds, pluralize, visible
from glassformer.see.protocols import RunLike
from glassformer.see.view import View

MAX_TOKENS = 32  # unless everything is shown


@dataclass(frozen=True)
class TokenTime:
    """How long one token took, with the cache and without."""

    text: str
    length: int  # tokens before it
    cached: float  # seconds
    uncached: float


@dataclass(frozen=True)
class CacheComparison(View):
    """One text, written with the KV cache and without."""

    SCHEMA = "glassformer.caching/1"

    model: str
    prompt_tokens: int
    same: bool  # whether the tokens are the same with and without
    texts: tuple[str, str]  # with the cache, and without
    steps: tuple[TokenTime, ...]
    seconds: tuple[float, float]
    fed: tuple[int, int]  # tokens that went through the model
    bytes: int  # that the cache held at the end

    def page(self, everything: bool = False) -> Page:
        most = max((max(step.cached, step.uncached) for step in self.steps), default=1.0) or 1.0
        table = Table.of(
            self.steps,
            (Column("before it", "number"), lambda step: str(step.length)),
            (Column("token", "token", min_width=8), lambda step: visible(step.text) if step.text else "…"),
            (Column("with cache", "number"), lambda step: format_seconds(step.cached)),
            (Column("", "bar", priority=6), lambda step: step.cached / most),
            (Column("without", "number"), lambda step: format_seconds(step.uncached)),
            (Column("", "bar", priority=6), lambda step: step.uncached / most),
            limit=None if everything else MAX_TOKENS,
        )
        cached, uncached = self.seconds
        verdict = "the same tokens with and without" if self.same else "other tokens without: it rounds differently"
        title = f"{self.model}: {pluralize(len(self.steps), 'token')} with the cache, and without"
        parts: list[PagePart] = [
            table,
            Paragraph(f"\n{verdict}", "chosen" if self.same else "strong"),
            Paragraph(
                f"with: {format_seconds(cached)}, {self.fed[0]:,} tokens through the model, "
                f"{format_bytes(self.bytes)} cached\n"
                f"without: {format_seconds(uncached)}, {self.fed[1]:,} tokens through the model, nothing cached"
                + (f"\n{uncached / cached:.1f} times as long without" if cached > 0 else "")
            ),
        ]
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"CacheComparison({len(self.steps)} tokens: {self.seconds[0]:.2f} s with, {self.seconds[1]:.2f} s without)"


@operation()
def caching(run: RunLike, progress: Progress | None = None) -> CacheComparison:
    """This text written twice, with the cache and without: the same tokens, at what cost in time and bytes."""
    model = run.model
    if run.settings.num_beams > 1 or run.negative is not None or run.settings.assistant_model is not None:
        raise SettingError("the cache is compared on one text at a time. Leave out beams, guidance and a model that drafts.")
    timings = [_time_tokens(run, cached, progress) for cached in (True, False)]
    texts = [[text for text, _ in tokens] for tokens in timings]
    begin = len(run.prompt_ids) if model.decoder_start_token is None else 1
    steps = tuple(
        TokenTime(text, begin + index, cached, uncached)
        for index, ((text, cached), (_, uncached)) in enumerate(zip(*timings, strict=False))
    )
    source = 0 if model.decoder_start_token is None else len(run.prompt_ids)
    in_cache = begin + len(timings[0]) - 1 + source
    fed = in_cache, sum(begin + index + source for index in range(len(timings[1])))
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
