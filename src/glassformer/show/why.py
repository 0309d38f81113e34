"""One choice in the terminal: candidates down, rules across."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.observe.why import Fated, Why
from glassformer.show.terminal import share, visible

SHORT = {  # rules' names where columns are narrow
    "repetition_penalty": "repetition", "presence_penalty": "presence", "frequency_penalty": "frequency",
    "dry_multiplier": "dry", "no_repeat_ngram_size": "n-grams", "guidance_scale": "guidance", "xtc_probability": "xtc",
}  # fmt: skip


def why(found: Why, most: int = 12) -> RenderableType:
    """The best candidates and the chosen one; what is out stays blank from the rule on that took it out."""
    chosen = next(one for one in found.candidates if one.chosen)
    rows = list(found.candidates[:most])
    if chosen not in rows:
        rows.append(chosen)
    stages = [0, *(at for at in range(1, len(found.counts)) if not idle(found, rows, at))]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    table.add_column("candidate", no_wrap=True)
    for name in (("model", *found.rules)[at] for at in stages):
        table.add_column(SHORT.get(name, name), justify="right")
    table.add_column("chance", justify="right")
    table.add_column("out by", style="dim")
    for row in rows:
        scores = ("" if (score := row.scores[at]) is None else f"{score:.2f}" for at in stages)
        chance = share(row.probability) if row.probability else ""
        told: list[Text | str] = [Text(visible(row.text)), *scores, chance, row.removed_by or ""]
        table.add_row("→" if row.chosen else "", *told, style="bold green" if row.chosen else "")
    table.add_row("", "in play", *(f"{found.counts[at]:,}" for at in stages), "", "", style="dim")
    table.add_row("", "bits", *(f"{found.entropies[at]:.2f}" for at in stages), "", "", style="dim")
    quiet = [name for at, name in enumerate(found.rules, 1) if at not in stages]
    left_out = [Text(f"changed nothing here: {', '.join(quiet)}", "dim")] if quiet else []
    return Group(Text(sentence(found, chosen)), table, *left_out)


def idle(found: Why, rows: Sequence[Fated], at: int) -> bool:
    """Whether a rule changed nothing that is shown."""
    return found.counts[at] == found.counts[at - 1] and all(row.scores[at] == row.scores[at - 1] for row in rows)


def sentence(found: Why, chosen: Fated) -> str:
    """What happened, in a line."""
    how = "the best was taken" if found.draw is None else f"drawn with {found.draw:.4f}"
    if found.beams > 1:
        how = f"as part of the best text of {found.beams} beams,"
    end = f"; the text ended: {found.finish}" if found.finish else ""
    return f"token {found.number}: {visible(chosen.text)} (id {chosen.id}), {how} out of {found.counts[-1]:,} in play{end}"
