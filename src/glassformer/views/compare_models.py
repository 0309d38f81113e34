"""Two models over one text: another quantisation, executor or change, or another model; where and how far they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import brief, share, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class DifferingPlace:
    """One place in the text, as both see it."""

    position: int
    before: str
    came: str  # what stands there; nothing behind the end
    best: tuple[str, str]  # what each would have said
    probability: tuple[float | None, float | None]  # of what came
    divergence: float  # of the second from the first, in nats


@dataclass(frozen=True)
class StreamDifference:
    """How far the streams are apart as they leave one block."""

    layer: str
    error: float  # the difference's length over the first's, mean over the tokens


@dataclass(frozen=True)
class ModelComparison(View):
    SCHEMA = "glassformer.compare-models/1"

    names: tuple[str, str]
    tokens: int  # that were scored
    perplexity: tuple[float, float]
    divergence: float  # mean, in nats a token
    agreement: float  # share of places whose best token is the same
    first: DifferingPlace | None  # the first place whose best token differs
    worst: tuple[DifferingPlace, ...]  # by divergence
    gaps: tuple[StreamDifference, ...]  # by layer; none where the streams cannot be compared

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"ModelComparison({self.names[0]} ‖ {self.names[1]}: KL {self.divergence:.2g}, agree {self.agreement:.1%})"


SO_FAR = 24  # characters of the text before a place
WORST_BLOCKS = 8


# Two models ---------------------------------------------------------------------------------------------------------


def draw(view: ModelComparison, everything: bool = False) -> Page:
    one, other = view.names
    numbers = (
        ("tokens", f"{view.tokens:,}", ""),
        ("perplexity", f"{view.perplexity[0]:,.4f}", f"{view.perplexity[1]:,.4f}"),
        ("KL of the second from the first", f"{view.divergence:.3g}", "nats a token"),
        ("the same first choice", f"{view.agreement:.2%}", ""),
    )
    parts: list[Part] = [
        Heading(f"{one}  ‖  {other}"),
        Table((Column(), Column("first", "number", least=12), Column("second")), tuple(Row(row) for row in numbers)),
    ]
    if view.first is None:
        parts.append(Words("their first choices are the same at every place", "chosen"))
    else:
        parts.append(Words(f"their first choices part at position {view.first.position}:", "strong"))
        parts.append(_places([view.first]))
    if view.divergence:
        worst = view.worst if everything else view.worst[:6]
        parts += [Heading("where they differ most"), _places(worst)]
    if view.gaps:
        most = max(gap.error for gap in view.gaps) or 1.0
        order = list(view.gaps) if everything else sorted(view.gaps, key=lambda gap: -gap.error)[:WORST_BLOCKS]
        rows = (Row((gap.layer, f"{gap.error:.2e}", gap.error / most)) for gap in order)
        parts.append(
            Heading("how far their streams are apart, " + ("layer by layer" if everything else "worst layers first"))
        )
        parts.append(Table((Column("after", "number"), Column("error", "number"), Column("", "bar")), tuple(rows)))
        parts.append(Words("error: the difference's length over the first's, mean over the tokens", "dim"))
    return Page(f"{one} and {other}", tuple(parts))


def _places(view: Sequence[DifferingPlace]) -> Table:
    columns = (
        Column("", "number"),
        Column("text so far", least=10, ends=True),
        Column("came", "token", least=6),
        Column("first says", "token", least=8),
        Column("second says", "token", least=8),
        Column("chance of it", "number", keep=6),
        Column("", "number", keep=6),
        Column("KL", "number"),
    )
    rows = (
        Row(
            (
                str(one.position),
                brief(one.before, SO_FAR),
                visible(one.came) if one.came else "",
                visible(one.best[0]),
                visible(one.best[1]),
                *("" if chance is None else share(chance) for chance in one.probability),
                f"{one.divergence:.3g}",
            )
        )
        for one in view
    )
    return Table(columns, tuple(rows))
