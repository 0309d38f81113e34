"""A sweep as a picture: candidates down, values across; and strategies with what each wrote."""

from __future__ import annotations

from glassformer.observe.sweep import Strategies, Sweep
from glassformer.show.page import Column, Heading, Page, Part, Row, Table, Words
from glassformer.show.words import brief, seconds, share, tame, visible


def page(found: Sweep, everything: bool = False) -> Page:
    names = [f"{found.setting} {shape.value}" if len(found.shapes) < 3 else shape.value for shape in found.shapes]
    columns = (Column("candidate", "token", least=8), Column("model", "number"), *(Column(name, "number") for name in names))
    rows = [
        Row((visible(text), share(own), *(_chance(shape.chances[at]) for shape in found.shapes)))
        for at, (text, own) in enumerate(zip(found.candidates, found.own, strict=True))
    ]
    rows.append(Row(("in play", "", *(f"{shape.left:,}" for shape in found.shapes)), "dim"))
    rows.append(Row(("bits", "", *(f"{shape.entropy:.2f}" for shape in found.shapes)), "dim"))
    bars = tuple(
        Row((visible(text), *(shape.chances[at] for shape in found.shapes))) for at, text in enumerate(found.candidates)
    )
    parts: list[Part] = [
        Heading(f"{found.model}: token {found.step} after {brief(found.before, 24)}, by {found.setting}"),
        Table(columns, tuple(rows)),
        Table((columns[0], *(Column(name, "bar") for name in names)), bars),
    ]
    return Page(f"{found.model}: a sweep of {found.setting}", tuple(parts))


def _chance(value: float) -> str:
    return share(value) if value else "–"


def strategies(found: Strategies, everything: bool = False) -> Page:
    columns = (
        Column("strategy"), Column("tokens", "number"), Column("surprise", "number"), Column("time", "number", keep=6),
        Column("ended", keep=5),
    )  # fmt: skip
    rows = (
        Row(
            (
                one.name,
                str(one.tokens),
                "" if one.surprise is None else f"{one.surprise:.2f}",
                seconds(one.seconds),
                one.finish or "",
            )
        )
        for one in found.tried
    )
    parts: list[Part] = [Heading(f"{found.model}: {len(found.tried)} ways to choose, on one prompt")]
    parts += [Table(columns, tuple(rows)), Words("surprise: mean bits a token, as the model has it", "dim")]
    for one in found.tried:
        parts += [Heading(one.name), Words(tame(one.text))]
    return Page(f"{found.model}: strategies side by side", tuple(parts))
