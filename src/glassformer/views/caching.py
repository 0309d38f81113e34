"""With the KV cache and without: the same tokens, and what they cost in time and memory."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import format_bytes, format_seconds, pluralize, visible
from glassformer.views.view import View

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
    """The same text written with the KV cache, and without."""

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
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"CacheComparison({len(self.steps)} tokens: {self.seconds[0]:.2f} s with, {self.seconds[1]:.2f} s without)"


def draw(view: CacheComparison, everything: bool = False) -> Page:
    most = max((max(step.cached, step.uncached) for step in view.steps), default=1.0) or 1.0
    rows = [
        TableRow(
            (
                str(step.length),
                visible(step.text) if step.text else "…",
                format_seconds(step.cached),
                step.cached / most,
                format_seconds(step.uncached),
                step.uncached / most,
            )
        )
        for step in view.steps
    ]
    columns = (
        Column("before it", "number"), Column("token", "token", min_width=8), Column("with cache", "number"),
        Column("", "bar", priority=6), Column("without", "number"), Column("", "bar", priority=6),
    )  # fmt: skip
    cached, uncached = view.seconds
    verdict = "the same tokens with and without" if view.same else "other tokens without: it rounds differently"
    parts: list[PagePart] = [
        Heading(title := f"{view.model}: {pluralize(len(view.steps), 'token')} with the cache, and without"),
        Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_TOKENS)),
        Paragraph(f"\n{verdict}", "chosen" if view.same else "strong"),
        Paragraph(
            f"with: {format_seconds(cached)}, {view.fed[0]:,} tokens through the model, {format_bytes(view.bytes)} cached\n"
            f"without: {format_seconds(uncached)}, {view.fed[1]:,} tokens through the model, nothing cached"
            + (f"\n{uncached / cached:.1f} times as long without" if cached > 0 else "")
        ),
    ]
    return Page(title, tuple(parts))
