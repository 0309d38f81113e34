"""One choice in the terminal: candidates down, rules across."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from glassformer.observe.why import Fated, Why
from glassformer.show.terminal import share, visible

MOST = 12  # candidates that are shown
SHORT = {  # rules' names where columns are narrow
    "repetition_penalty": "repetition", "presence_penalty": "presence", "frequency_penalty": "frequency",
    "dry_multiplier": "dry", "no_repeat_ngram_size": "n-grams", "guidance_scale": "guidance", "xtc_probability": "xtc",
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """The best candidates and the chosen one; what is out stays blank from the rule on that took it out.

    Rules that changed nothing of this have no column, and where there is little room, the first ones have none.
    """

    found: Why

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found, rows = self.found, self.rows
        told = ("log-prob" if found.beams > 1 else "model", *(SHORT.get(name, name) for name in found.rules))
        columns = [self.column(at, told[at]) for at in range(len(told))]
        idle = [at for at in range(1, len(told)) if self.idle(at)]
        shown = [at for at in range(len(told)) if at not in idle]
        names = [visible(row.text) for row in rows]
        outs = [row.removed_by or "" for row in rows]
        fixed = 4 + 8 + max(map(cell_len, [*names, "candidate"])) + 2 + max(map(len, [*outs, "out by"])) + 3
        while len(shown) > 2 and fixed + sum(max(map(len, columns[at])) + 1 for at in shown) > options.max_width:
            shown.pop(1)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("")
        table.add_column("candidate", no_wrap=True)
        for at in shown:
            table.add_column(told[at], justify="right")
        table.add_column("chance", justify="right")
        table.add_column("out by", style="dim")
        for number, row in enumerate(rows):
            chance = share(row.probability) if row.probability else ""
            scores = (columns[at][number + 1] for at in shown)
            style = "bold green" if row.chosen else ""
            table.add_row("→" if row.chosen else "", Text(names[number]), *scores, chance, outs[number], style=style)
        table.add_row("", "in play", *(columns[at][-2] for at in shown), "", "", style="dim")
        table.add_row("", "bits", *(columns[at][-1] for at in shown), "", "", style="dim")
        yield Text(sentence(found))
        yield table
        for word, left_out in (("changed nothing here", idle), ("no room for", self.hidden(shown, idle))):
            if left_out:
                yield Text(f"{word}: {', '.join(found.rules[at - 1] for at in left_out)}", "dim")

    @property
    def rows(self) -> list[Fated]:
        first = list(self.found.candidates[:MOST])
        return [*first, *(one for one in self.found.candidates[MOST:] if one.chosen)]

    def column(self, at: int, name: str) -> list[str]:
        """A stage's heading, scores, count and entropy."""
        scores = ("" if (score := row.scores[at]) is None else f"{score:.2f}" for row in self.rows)
        return [name, *scores, f"{self.found.counts[at]:,}", f"{self.found.entropies[at]:.2f}"]

    def idle(self, at: int) -> bool:
        """Whether a rule changed nothing that is shown."""
        same = self.found.counts[at] == self.found.counts[at - 1]
        return same and all(row.scores[at] == row.scores[at - 1] for row in self.rows)

    def hidden(self, shown: Sequence[int], idle: Sequence[int]) -> list[int]:
        return [at for at in range(1, len(self.found.counts)) if at not in shown and at not in idle]


def sentence(found: Why) -> str:
    """What happened, in a line."""
    chosen = next(one for one in found.candidates if one.chosen)
    how = "the best" if found.draw is None else f"picked by the draw {found.draw:.4f}"
    if found.beams > 1:
        how = f"part of the best text of {found.beams} beams,"
    end = f"; the text ended: {found.finish}" if found.finish else ""
    return f"token {found.number}: {visible(chosen.text)} (id {chosen.id}), {how} out of {found.counts[-1]:,} in play{end}"
