"""Two texts in one model: how the states of the same token differ between them, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.views.answers import Candidate
from glassformer.views.view import View


@dataclass(frozen=True)
class LayerDifference:
    """How far a token's states in two texts differ after one layer."""

    layer: str  # 'embedding', then the blocks by number
    largest: float  # largest difference of any element
    cosine: float  # 1: the same direction


@dataclass(frozen=True)
class TextComparison(View):
    """One token in two texts, layer by layer."""

    SCHEMA = "glassformer.compare-texts/3"

    model: str
    texts: tuple[str, str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    shared: int  # length of the common prefix, in tokens
    token: str  # the one that is compared
    positions: tuple[int, int]  # of that token, in each text
    layers: tuple[LayerDifference, ...]
    diverges_at: str | None  # the first layer after which it differs; None: it does not
    best: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]  # for the token after it, in each text
    divergence: float | None  # KL divergence of the second from the first, in bits; None for a model that scores no tokens

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def same(self) -> bool:
        """Whether the token is the same in both, at every layer."""
        return self.diverges_at is None

    @property
    def rounded(self) -> bool:
        """Whether the token differs by rounding alone: all that stands before it is the same, and so is it, but for that."""
        first, second = self.positions
        return not self.same and first == second < self.shared and all(layer.cosine > 0.999 for layer in self.layers)

    def __repr__(self) -> str:
        return f"TextComparison({self.token!r}: {'the same' if self.same else f'differs from layer {self.diverges_at} on'})"


def draw(view: TextComparison, everything: bool = False) -> Page:
    first, second = view.positions
    token = visible(view.token)
    title = f"{view.model}: {token} at position {first} of the first text and {second} of the second"
    if view.same:
        verdict = "the same at every layer: what follows a token does not change it"
    elif view.rounded:
        verdict = (
            "the same but for rounding: what follows a token does not change it, but PyTorch adds in another order "
            "for a text of another length (the cpu executor does not)"
        )
    elif view.diverges_at == "embedding":
        verdict = "different from the start: another position, or another token"
    else:
        verdict = f"the same until block {view.diverges_at}, where attention brings in other tokens"
    most = max(layer.largest for layer in view.layers) or 1.0
    parts: list[PagePart] = [
        Heading(title),
        *(Paragraph(f"{number}: {' '.join(map(visible, tokens))}") for number, tokens in enumerate(view.tokens, 1)),
        Paragraph(f"common prefix: {pluralize(view.shared, 'token')}" if view.shared else "no common prefix", "dim"),
        Paragraph(f"{token} is {verdict}", "chosen" if view.same or view.rounded else "strong"),
        Table(
            (
                Column("after", "number"),
                Column("largest difference", "number"),
                Column("cosine", "number"),
                Column("", "bar", priority=5),
            ),
            tuple(
                TableRow(
                    (
                        layer.layer,
                        "0" if not layer.largest else f"{layer.largest:.3g}",
                        f"{layer.cosine:.4f}",
                        layer.largest / most,
                    )
                )
                for layer in view.layers
            ),
        ),
    ]
    if view.divergence is not None:
        parts += [Heading(f"the next token: KL divergence {view.divergence:.4f} bits"), _candidates_table(view.best)]
    return Page(title, tuple(parts))


def _candidates_table(best: Sequence[Sequence[Candidate]]) -> Table:
    columns = (
        Column("first text", "token", min_width=8),
        Column("probability", "number"),
        Column("second text", "token", min_width=8),
        Column("probability", "number"),
    )
    rows = (
        TableRow(
            (
                visible(first.text),
                format_percent(first.probability),
                visible(second.text),
                format_percent(second.probability),
            )
        )
        for first, second in zip(*best, strict=True)
    )
    return Table(columns, tuple(rows))
