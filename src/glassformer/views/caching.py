"""With the KV cache and without: the same tokens, at what cost in time and in memory."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Part, Row, Table, Words, middle
from glassformer.page.format import many, seconds, storage, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class TokenTime:
    """What one token took, each way."""

    text: str
    length: int  # tokens before it
    cached: float  # seconds
    uncached: float


@dataclass(frozen=True)
class CacheComparison(View):
    SCHEMA = "glassformer.caching/1"

    model: str
    prompt_tokens: int
    same: bool  # whether both ways gave the same tokens
    texts: tuple[str, str]  # with the cache, and without
    steps: tuple[TokenTime, ...]
    seconds: tuple[float, float]
    fed: tuple[int, int]  # tokens that went through the model
    bytes: int  # that the cache held at the end

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"CacheComparison({len(self.steps)} tokens: {self.seconds[0]:.2f} s with, {self.seconds[1]:.2f} s without)"


MOST = 32


def draw(view: CacheComparison, everything: bool = False) -> Page:
    most = max((max(step.cached, step.uncached) for step in view.steps), default=1.0) or 1.0
    rows = [
        Row(
            (
                str(step.length),
                visible(step.text) if step.text else "…",
                seconds(step.cached),
                step.cached / most,
                seconds(step.uncached),
                step.uncached / most,
            )
        )
        for step in view.steps
    ]
    columns = (
        Column("before it", "number"), Column("token", "token", least=8), Column("with cache", "number"),
        Column("", "bar", keep=6), Column("without", "number"), Column("", "bar", keep=6),
    )  # fmt: skip
    with_, without = view.seconds
    verdict = "the same tokens both ways" if view.same else "the two ways gave different tokens: rounding differs"
    parts: list[Part] = [
        Heading(f"{view.model}: {many(len(view.steps), 'token')} with the cache, and without"),
        Table(columns, tuple(rows) if everything else middle(rows, MOST)),
        Words(f"\n{verdict}", "chosen" if view.same else "strong"),
        Words(
            f"with: {seconds(with_)}, {view.fed[0]:,} tokens through the model, {storage(view.bytes)} kept\n"
            f"without: {seconds(without)}, {view.fed[1]:,} tokens through the model, nothing kept"
            + (f"\n{without / with_:.1f} times as long without" if with_ > 0 else "")
        ),
    ]
    return Page(f"{view.model}: what the cache is for", tuple(parts))
