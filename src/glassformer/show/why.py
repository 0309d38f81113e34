"""One choice: candidates down, rules across."""

from __future__ import annotations

from glassformer.observe.why import Fated, Why, Whys
from glassformer.show.page import Column, Heading, Page, Part, Row, Table, Words
from glassformer.show.words import share, visible

MOST = 12  # candidates that are shown
SHORT = {  # rules' names where columns are narrow
    "repetition_penalty": "repetition", "presence_penalty": "presence", "frequency_penalty": "frequency",
    "dry_multiplier": "dry", "no_repeat_ngram_size": "n-grams", "guidance_scale": "guidance", "xtc_probability": "xtc",
}  # fmt: skip


def page(found: Why, everything: bool = False) -> Page:
    said = sentence(found)
    idle = [rule for at, rule in enumerate(found.rules, 1) if _idle(found, at)]
    parts: list[Part] = [Words(said), table(found, everything)]
    if idle:
        parts.append(Words(f"changed nothing here: {', '.join(idle)}", "dim"))
    return Page(said, tuple(parts))


def several(found: Whys, everything: bool = False) -> Page:
    """One choice after the other."""
    settings = "\n".join(f"{name}: {value}" for name, value in found.settings.items())
    parts: list[Part] = [Heading("the settings in force"), Words(settings, "dim")]
    for one in found.whys:
        chosen = next(candidate for candidate in one.candidates if candidate.chosen)
        parts += [Heading(f"token {one.number}: {visible(chosen.text)}"), *page(one, everything).parts]
    return Page(f"{found.model}: why each token", tuple(parts))


def table(found: Why, everything: bool = False) -> Table:
    """The best candidates and the chosen one; what is out stays blank from the rule on that took it out.

    Rules that changed nothing of this have no column, and where there is little room, the first ones have none.
    """
    rows = _rows(found, everything)
    names = ("log-prob" if found.beams > 1 else "model", *(SHORT.get(name, name) for name in found.rules))
    stages = [at for at in range(len(names)) if not at or not _idle(found, at)]
    ranks = {at: 9 if at in (0, stages[-1]) else min(8, 2 + number) for number, at in enumerate(stages)}
    columns = (
        Column(), Column("candidate", "token", least=10), *(Column(names[at], "number", keep=ranks[at]) for at in stages),
        Column("chance", "number"), Column("", "bar", keep=1), Column("out by", keep=8),
    )  # fmt: skip
    lines = [
        Row(
            (
                "→" if row.chosen else "",
                visible(row.text),
                *("" if (score := row.scores[at]) is None else f"{score:.2f}" for at in stages),
                share(row.probability) if row.probability else "",
                float(row.probability),
                row.removed_by or "",
            ),
            "chosen" if row.chosen else "out" if row.removed_by else "",
        )
        for row in rows
    ]
    foot = [
        Row(("", "in play", *(f"{found.counts[at]:,}" for at in stages), "", 0.0, ""), "dim"),
        Row(("", "bits", *(f"{found.entropies[at]:.2f}" for at in stages), "", 0.0, ""), "dim"),
    ]
    return Table(columns, (*lines, *foot))


def _rows(found: Why, everything: bool) -> list[Fated]:
    most = len(found.candidates) if everything else MOST
    return [*found.candidates[:most], *(one for one in found.candidates[most:] if one.chosen)]


def _idle(found: Why, at: int) -> bool:
    """Whether a rule changed nothing that is shown."""
    same = found.counts[at] == found.counts[at - 1]
    return same and all(row.scores[at] == row.scores[at - 1] for row in _rows(found, everything=False))


def sentence(found: Why) -> str:
    """What happened, in a line."""
    chosen = next(one for one in found.candidates if one.chosen)
    how = "the best" if found.draw is None else f"picked by the draw {found.draw:.4f}"
    if found.beams > 1:
        how = f"part of the best text of {found.beams} beams,"
    end = f"; the text ended: {found.finish}" if found.finish else ""
    return f"token {found.number}: {visible(chosen.text)} (id {chosen.id}), {how} out of {found.counts[-1]:,} in play{end}"
