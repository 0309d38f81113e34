"""Two texts in one model: where they part, and what the same token is in each, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import many, share, visible
from glassformer.views.answers import Candidate
from glassformer.views.view import View


@dataclass(frozen=True)
class LayerDifference:
    """How far a token's states in two texts are apart after one layer."""

    layer: str  # 'embedding', then the blocks by number
    largest: float  # difference of any one number
    cosine: float  # 1: the same direction


@dataclass(frozen=True)
class TextComparison(View):
    SCHEMA = "glassformer.compare-texts/1"

    model: str
    texts: tuple[str, str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    shared: int  # tokens at the beginning that are the same in both
    token: str  # the one that is looked at
    positions: tuple[int, int]  # where it stands in each
    layers: tuple[LayerDifference, ...]
    parts: str | None  # the first layer after which it differs; None: it is the same all the way
    best: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]  # what would come next, in each
    divergence: float | None  # of the second's from the first's, in nats; None for a model that scores no tokens

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def same(self) -> bool:
        """Whether the token is the same in both, at every layer."""
        return self.parts is None

    def __repr__(self) -> str:
        return f"TextComparison({self.token!r}: {'the same' if self.same else f'parts at layer {self.parts}'})"


# Two texts ----------------------------------------------------------------------------------------------------------


def draw(view: TextComparison, everything: bool = False) -> Page:
    one, other = view.positions
    token = visible(view.token)
    said = f"{token} at position {one} of the first text and {other} of the second"
    if view.same:
        verdict = "the same at every layer: what follows a token does not change it"
    elif view.parts == "embedding":
        verdict = "different from the start: the token stands at another position, or is another"
    else:
        verdict = f"the same until block {view.parts}, where attention brings in other tokens"
    most = max(one.largest for one in view.layers) or 1.0
    parts: list[Part] = [
        Heading(f"{view.model}: {said}"),
        *(Words(f"{number}: {' '.join(map(visible, side))}") for number, side in enumerate(view.tokens, 1)),
        Words(f"alike at the beginning: {many(view.shared, 'token')}" if view.shared else "they begin differently", "dim"),
        Words(f"{token} is {verdict}", "chosen" if view.same else "strong"),
        Table(
            (
                Column("after", "number"),
                Column("largest difference", "number"),
                Column("cosine", "number"),
                Column("", "bar", keep=5),
            ),
            tuple(
                Row((one.layer, "0" if not one.largest else f"{one.largest:.3g}", f"{one.cosine:.4f}", one.largest / most))
                for one in view.layers
            ),
        ),
    ]
    if view.divergence is not None:
        parts += [Heading(f"what would come after it: KL {view.divergence:.4f} nats"), _pair(view.best)]
    return Page(f"{view.model}: two texts", tuple(parts))


def _pair(best: Sequence[Sequence[Candidate]]) -> Table:
    columns = (
        Column("first text", "token", least=8),
        Column("chance", "number"),
        Column("second text", "token", least=8),
        Column("chance", "number"),
    )
    rows = (
        Row((visible(one.text), share(one.probability), visible(other.text), share(other.probability)))
        for one, other in zip(*best, strict=True)
    )
    return Table(columns, tuple(rows))
