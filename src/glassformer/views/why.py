"""Why this token: what the model thought of each candidate, what each rule did to it, and what decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import share, visible
from glassformer.views.view import View


@dataclass(frozen=True)
class ExplainedCandidate:
    """One candidate and its way through the rules."""

    id: int
    text: str
    scores: tuple[float | None, ...]  # under the model, then after each rule; None when it is out
    probability: float  # at the end
    removed_by: str | None
    chosen: bool


@dataclass(frozen=True)
class Why(View):
    SCHEMA = "glassformer.why/1"

    number: int  # which token it was: 0 is the first after the prompt
    text: str
    rules: tuple[str, ...]
    counts: tuple[int, ...]  # candidates in play: at first, then after each rule
    entropies: tuple[float, ...]  # of what is in play, in bits
    candidates: tuple[ExplainedCandidate, ...]  # best first, as the model has it
    draw: float | None
    logprob: float | None  # of the chosen token under the model's own scores
    finish: str | None
    beams: int = 1  # how many texts were compared: above 1, a token is chosen for the text that it is part of

    @property
    def entropy(self) -> float:
        """How open the choice was to the model, in bits."""
        return self.entropies[0]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"Why(token {self.number}: {self.text!r} out of {self.counts[-1]:,} candidates)"


@dataclass(frozen=True)
class Whys(View):
    """Why each token of a text was chosen."""

    SCHEMA = "glassformer.whys/1"

    model: str
    settings: Mapping[str, str]  # those in force
    whys: tuple[Why, ...]

    def page(self, everything: bool = False) -> Page:
        return draw_all(self, everything)


MOST = 12  # candidates that are shown
SHORT = {  # rules' names where columns are narrow
    "repetition_penalty": "repetition", "presence_penalty": "presence", "frequency_penalty": "frequency",
    "dry_multiplier": "dry", "no_repeat_ngram_size": "n-grams", "guidance_scale": "guidance", "xtc_probability": "xtc",
}  # fmt: skip


def draw(view: Why, everything: bool = False) -> Page:
    said = sentence(view)
    idle = [rule for at, rule in enumerate(view.rules, 1) if _idle(view, at)]
    parts: list[Part] = [Words(said), table(view, everything)]
    if idle:
        parts.append(Words(f"changed nothing here: {', '.join(idle)}", "dim"))
    return Page(said, tuple(parts))


def draw_all(view: Whys, everything: bool = False) -> Page:
    """One choice after the other."""
    settings = "\n".join(f"{name}: {value}" for name, value in view.settings.items())
    parts: list[Part] = [Heading("the settings in force"), Words(settings, "dim")]
    for one in view.whys:
        chosen = next(candidate for candidate in one.candidates if candidate.chosen)
        parts += [Heading(f"token {one.number}: {visible(chosen.text)}"), *draw(one, everything).parts]
    return Page(f"{view.model}: why each token", tuple(parts))


def table(view: Why, everything: bool = False) -> Table:
    """The best candidates and the chosen one; what is out stays blank from the rule on that took it out.

    Rules that changed nothing of this have no column, and where there is little room, the first ones have none.
    """
    rows = _rows(view, everything)
    names = ("log-prob" if view.beams > 1 else "model", *(SHORT.get(name, name) for name in view.rules))
    stages = [at for at in range(len(names)) if not at or not _idle(view, at)]
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
        Row(("", "in play", *(f"{view.counts[at]:,}" for at in stages), "", 0.0, ""), "dim"),
        Row(("", "bits", *(f"{view.entropies[at]:.2f}" for at in stages), "", 0.0, ""), "dim"),
    ]
    return Table(columns, (*lines, *foot))


def _rows(view: Why, everything: bool) -> list[ExplainedCandidate]:
    most = len(view.candidates) if everything else MOST
    return [*view.candidates[:most], *(one for one in view.candidates[most:] if one.chosen)]


def _idle(view: Why, at: int) -> bool:
    """Whether a rule changed nothing that is shown."""
    same = view.counts[at] == view.counts[at - 1]
    return same and all(row.scores[at] == row.scores[at - 1] for row in _rows(view, everything=False))


def sentence(view: Why) -> str:
    """What happened, in a line."""
    chosen = next(one for one in view.candidates if one.chosen)
    how = "the best" if view.draw is None else f"picked by the draw {view.draw:.4f}"
    if view.beams > 1:
        how = f"part of the best text of {view.beams} beams,"
    end = f"; the text ended: {view.finish}" if view.finish else ""
    return f"token {view.number}: {visible(chosen.text)} (id {chosen.id}), {how} out of {view.counts[-1]:,} in play{end}"
