"""Comparisons: two texts, two models, two runs."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.observe.comparing.runs import Beside, Runs
from glassformer.observe.comparing.sides import Differing, Sides
from glassformer.observe.comparing.texts import Texts
from glassformer.observe.journey import Candidate
from glassformer.show.page import Column, Heading, Page, Part, Row, Table, Words
from glassformer.show.words import brief, many, share, tame, visible

SO_FAR = 24  # characters of the text before a place
BEST = 10  # candidates of two runs
WORST_BLOCKS = 8


# Two texts ----------------------------------------------------------------------------------------------------------


def texts(found: Texts, everything: bool = False) -> Page:
    one, other = found.positions
    token = visible(found.token)
    said = f"{token} at position {one} of the first text and {other} of the second"
    if found.same:
        verdict = "the same at every layer: what follows a token does not change it"
    elif found.parts == "embedding":
        verdict = "different from the start: the token stands at another position, or is another"
    else:
        verdict = f"the same until block {found.parts}, where attention brings in other tokens"
    most = max(one.largest for one in found.layers) or 1.0
    parts: list[Part] = [
        Heading(f"{found.model}: {said}"),
        *(Words(f"{number}: {' '.join(map(visible, side))}") for number, side in enumerate(found.tokens, 1)),
        Words(f"alike at the beginning: {many(found.shared, 'token')}" if found.shared else "they begin differently", "dim"),
        Words(f"{token} is {verdict}", "chosen" if found.same else "strong"),
        Table(
            (
                Column("after", "number"),
                Column("largest difference", "number"),
                Column("cosine", "number"),
                Column("", "bar", keep=5),
            ),
            tuple(
                Row((one.layer, "0" if not one.largest else f"{one.largest:.3g}", f"{one.cosine:.4f}", one.largest / most))
                for one in found.layers
            ),
        ),
    ]
    if found.divergence is not None:
        parts += [Heading(f"what would come after it: KL {found.divergence:.4f} nats"), _pair(found.best)]
    return Page(f"{found.model}: two texts", tuple(parts))


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


# Two models ---------------------------------------------------------------------------------------------------------


def sides(found: Sides, everything: bool = False) -> Page:
    one, other = found.names
    numbers = (
        ("tokens", f"{found.tokens:,}", ""),
        ("perplexity", f"{found.perplexity[0]:,.4f}", f"{found.perplexity[1]:,.4f}"),
        ("KL of the second from the first", f"{found.divergence:.3g}", "nats a token"),
        ("the same first choice", f"{found.agreement:.2%}", ""),
    )
    parts: list[Part] = [
        Heading(f"{one}  ‖  {other}"),
        Table((Column(), Column("first", "number", least=12), Column("second")), tuple(Row(row) for row in numbers)),
    ]
    if found.first is None:
        parts.append(Words("their first choices are the same at every place", "chosen"))
    else:
        parts.append(Words(f"their first choices part at position {found.first.position}:", "strong"))
        parts.append(_places([found.first]))
    if found.divergence:
        worst = found.worst if everything else found.worst[:6]
        parts += [Heading("where they differ most"), _places(worst)]
    if found.gaps:
        most = max(gap.error for gap in found.gaps) or 1.0
        order = list(found.gaps) if everything else sorted(found.gaps, key=lambda gap: -gap.error)[:WORST_BLOCKS]
        rows = (Row((gap.layer, f"{gap.error:.2e}", gap.error / most)) for gap in order)
        parts.append(
            Heading("how far their streams are apart, " + ("layer by layer" if everything else "worst layers first"))
        )
        parts.append(Table((Column("after", "number"), Column("error", "number"), Column("", "bar")), tuple(rows)))
        parts.append(Words("error: the difference's length over the first's, mean over the tokens", "dim"))
    return Page(f"{one} and {other}", tuple(parts))


def _places(found: Sequence[Differing]) -> Table:
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
        for one in found
    )
    return Table(columns, tuple(rows))


# Two runs -----------------------------------------------------------------------------------------------------------


def runs(found: Runs, everything: bool = False) -> Page:
    one, other = found.names
    parts: list[Part] = [Heading(f"{one}  ‖  {other}")]
    if found.prompts[0] != found.prompts[1]:
        parts.append(Words(f"their prompts are the same for {many(found.shared_prompt, 'token')}", "dim"))
        parts += [
            Words(f"{name}: {tame(text.strip())}", "dim") for name, text in zip(found.names, found.prompts, strict=True)
        ]
    for setting in found.settings:
        parts.append(Words(f"{setting.name}: {setting.values[0]}  ‖  {setting.values[1]}", "dim"))
    for name, sites in zip(found.names, found.changes, strict=True):
        if sites:
            shown = ", ".join(sites[:4]) + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")
            parts.append(Words(f"{name}: changed at {shown}", "dim"))
    parts += [Heading(one), Words(tame(found.texts[0])), Heading(other), Words(tame(found.texts[1]))]
    if found.same:
        said = "the two texts are the same, token by token; at the first step:"
    else:
        said = f"the texts part at token {found.step}" + (f"; at token {found.shown}:" if found.shown != found.step else ":")
    entropies = "  ‖  ".join("–" if bits is None else f"{bits:.2f}" for bits in found.entropy)
    parts += [Heading(said), _beside(found.candidates if everything else found.candidates[:BEST])]
    legend = "model: as it has it · chance: after the rules · –: not among those kept"
    parts.append(Words(f"1: {one} · 2: {other} · {legend} · open: {entropies} bits", "dim"))
    return Page(f"{one} and {other}", tuple(parts))


def _beside(found: Sequence[Beside]) -> Table:
    def told(value: float | None) -> str:
        return "–" if value is None else share(value) if value else "out"

    columns = (
        Column("candidate", "token", least=8),
        Column("model 1", "number"),
        Column("model 2", "number"),
        Column("chance 1", "number"),
        Column("chance 2", "number"),
        Column("", "bar", keep=4),
        Column("", "bar", keep=4),
    )
    rows = (
        Row((visible(one.text), *map(told, (*one.model, *one.chance)), *(float(chance or 0.0) for chance in one.chance)))
        for one in found
    )
    return Table(columns, tuple(rows))
