"""The lens as pictures: layers down, positions across; and how one answer came about, layer by layer."""

from __future__ import annotations

from glassformer.observe.lens import Lens
from glassformer.show.page import Column, Grid, Heading, Page, Part, Row, Table, Words
from glassformer.show.words import share, visible


def page(found: Lens, everything: bool = False) -> Page:
    parts: list[Part] = [
        Heading(f"{found.model}: what each layer would have said next"),
        Words("each column is a token of the text, each cell the best next token there; shades are its probability", "dim"),
        Grid(
            found.layers,
            tuple(map(visible, found.tokens)),
            tuple(tuple(one.probability for one in layer) for layer in found.said),
            tuple(tuple(visible(one.text) for one in layer) for layer in found.said),
            whole=everything,
        ),
    ]
    for at in range(len(found.positions)) if everything else (len(found.positions) - 1,):
        parts += position(found, at)
    parts.append(Words("KL to the end: how far what is said here is from what is said at the end, in nats", "dim"))
    return Page(f"{found.model}: the lens", tuple(parts))


def position(found: Lens, at: int) -> list[Part]:
    """One position, layer by layer."""
    end = visible(found.final[at].text)
    columns = (
        Column("layer", "number"), Column("says", "token", least=8), Column("chance", "number"),
        Column(f"rank of {end}", "number"), Column("its chance", "number"), Column("", "bar", keep=5),
        Column("KL to the end", "number", keep=8),
    )  # fmt: skip
    rows = tuple(
        Row(
            (
                name,
                visible(one.text),
                share(one.probability),
                f"{one.rank:,}",
                share(one.final),
                one.final,
                f"{one.divergence:.2f}",
            ),
            "chosen" if one.id == found.final[at].id else "",
        )
        for name, one in zip(found.layers, (layer[at] for layer in found.said), strict=True)
    )
    where = f"after {visible(found.tokens[at])} (position {found.positions[at]})"
    said = (
        f"{end} is the first choice from layer {found.settled(at)} on"
        if found.settled(at) != "embedding"
        else f"{end} from the start"
    )
    return [Heading(f"{where}: {said}"), Table(columns, rows)]
