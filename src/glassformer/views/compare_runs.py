"""Two runs side by side: what each wrote, where the texts part, and what each thought at that place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Part, Row, Table, Words
from glassformer.page.format import many, share, tame, visible
from glassformer.views.answers import Candidate
from glassformer.views.view import View


@dataclass(frozen=True)
class SettingPair:
    """A setting that is not the same in both."""

    name: str
    values: tuple[str, str]


@dataclass(frozen=True)
class CandidatePair:
    """One candidate in both runs, at one step: its probability as the model has it, and after the rules."""

    id: int
    text: str
    model: tuple[float | None, float | None]  # None: not among those that were kept
    chance: tuple[float | None, float | None]


@dataclass(frozen=True)
class RunComparison(View):
    SCHEMA = "glassformer.compare-runs/1"

    names: tuple[str, str]
    prompts: tuple[str, str]
    shared_prompt: int  # tokens at the beginning of the prompts that are the same
    texts: tuple[str, str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    settings: tuple[SettingPair, ...]  # those that differ
    changes: tuple[tuple[str, ...], tuple[str, ...]]  # sites that were changed inside the model
    step: int | None  # the first at which the texts differ; None: they are the same
    shown: int  # the step whose candidates are told: the first difference, or the first step
    candidates: tuple[CandidatePair, ...]
    best: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]  # the models' own, at that step
    entropy: tuple[float | None, float | None]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def same(self) -> bool:
        return self.step is None

    def __repr__(self) -> str:
        return "RunComparison(the same text)" if self.same else f"RunComparison(part at step {self.step})"


BEST = 10  # candidates of two runs


# Two runs -----------------------------------------------------------------------------------------------------------


def draw(view: RunComparison, everything: bool = False) -> Page:
    one, other = view.names
    parts: list[Part] = [Heading(f"{one}  ‖  {other}")]
    if view.prompts[0] != view.prompts[1]:
        parts.append(Words(f"their prompts are the same for {many(view.shared_prompt, 'token')}", "dim"))
        parts += [Words(f"{name}: {tame(text.strip())}", "dim") for name, text in zip(view.names, view.prompts, strict=True)]
    for setting in view.settings:
        parts.append(Words(f"{setting.name}: {setting.values[0]}  ‖  {setting.values[1]}", "dim"))
    for name, sites in zip(view.names, view.changes, strict=True):
        if sites:
            shown = ", ".join(sites[:4]) + (f" and {len(sites) - 4} more" if len(sites) > 4 else "")
            parts.append(Words(f"{name}: changed at {shown}", "dim"))
    parts += [Heading(one), Words(tame(view.texts[0])), Heading(other), Words(tame(view.texts[1]))]
    if view.same:
        said = "the two texts are the same, token by token; at the first step:"
    else:
        said = f"the texts part at token {view.step}" + (f"; at token {view.shown}:" if view.shown != view.step else ":")
    entropies = "  ‖  ".join("–" if bits is None else f"{bits:.2f}" for bits in view.entropy)
    parts += [Heading(said), _candidates_table(view.candidates if everything else view.candidates[:BEST])]
    legend = "model: as it has it · chance: after the rules · –: not among those kept"
    parts.append(Words(f"1: {one} · 2: {other} · {legend} · entropy: {entropies} bits", "dim"))
    return Page(f"{one} and {other}", tuple(parts))


def _candidates_table(view: Sequence[CandidatePair]) -> Table:
    def percentage(value: float | None) -> str:
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
        Row(
            (
                visible(one.text),
                *map(percentage, (*one.model, *one.chance)),
                *(float(chance or 0.0) for chance in one.chance),
            )
        )
        for one in view
    )
    return Table(columns, tuple(rows))
