"""Two runs side by side: what each wrote, where the texts diverge, and the candidates of each at that step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import abbreviate_list, format_percent, pluralize, visible
from glassformer.views.answers import Candidate
from glassformer.views.view import View

MAX_CANDIDATES = 10  # unless everything is shown
LEGEND = "model: probability under the model · prob.: after the rules"
NO_RULES = "prob.: under the model, which no rule changed"


@dataclass(frozen=True)
class SettingPair:
    """A setting that differs between the runs."""

    name: str
    values: tuple[str, str]


@dataclass(frozen=True)
class CandidatePair:
    """One candidate at one step of both runs: its probability under the model, and after the rules."""

    id: int
    text: str
    model: tuple[float | None, float | None]  # None: not recorded
    probability: tuple[float | None, float | None]


@dataclass(frozen=True)
class RunComparison(View):
    """Two runs: their settings, their texts, and the first step at which they differ."""

    SCHEMA = "glassformer.compare-runs/2"
    RECORDS = "candidates"

    names: tuple[str, str]
    prompts: tuple[str, str]
    shared_prompt: int  # length of the prompts' common prefix, in tokens
    texts: tuple[str, str]
    tokens: tuple[tuple[str, ...], tuple[str, ...]]
    settings: tuple[SettingPair, ...]  # those that differ
    changes: tuple[tuple[str, ...], tuple[str, ...]]  # sites that were changed inside the model
    step: int | None  # the first at which the texts differ; None: they are the same
    shown: int  # the step whose candidates these are: the first difference, or the first step
    candidates: tuple[CandidatePair, ...]
    best: tuple[tuple[Candidate, ...], tuple[Candidate, ...]]  # under the model alone, at that step
    entropy: tuple[float | None, float | None]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def same(self) -> bool:
        return self.step is None

    def __repr__(self) -> str:
        return "RunComparison(the same text)" if self.same else f"RunComparison(diverge at step {self.step})"


def draw(view: RunComparison, everything: bool = False) -> Page:
    first, second = view.names
    parts: list[PagePart] = [Heading(title := f"{first}  ‖  {second}")]
    if view.prompts[0] != view.prompts[1]:
        parts.append(Paragraph(f"common prefix of the prompts: {pluralize(view.shared_prompt, 'token')}", "dim"))
        parts += [Paragraph(f"{name}: {text.strip()}", "dim") for name, text in zip(view.names, view.prompts, strict=True)]
    for setting in view.settings:
        parts.append(Paragraph(f"{setting.name}: {setting.values[0]}  ‖  {setting.values[1]}", "dim"))
    for name, sites in zip(view.names, view.changes, strict=True):
        if sites:
            parts.append(Paragraph(f"{name}: changed at {abbreviate_list(sites, 4)}", "dim"))
    parts += [
        Heading(first),
        Paragraph(view.texts[0]),
        Heading(second),
        Paragraph(view.texts[1]),
    ]
    if view.same:
        verdict = "the two texts are the same, token by token; at the first step:"
    else:
        verdict = f"the texts diverge at token {view.step}" + (
            f"; at token {view.shown}:" if view.shown != view.step else ":"
        )
    entropies = "  ‖  ".join("–" if bits is None else f"{bits:.2f}" for bits in view.entropy)
    ruled = any(map(_is_ruled, view.candidates))
    shown = view.candidates if everything else view.candidates[:MAX_CANDIDATES]
    parts += [Heading(verdict), _candidates_table(shown, ruled)]
    legend = LEGEND if ruled else NO_RULES
    parts.append(Paragraph(f"1: {first} · 2: {second} · {legend}\n–: not recorded · entropy: {entropies} bits", "dim"))
    return Page(title, tuple(parts))


def _is_ruled(candidate: CandidatePair) -> bool:
    """Whether rules changed its probability in one of the runs."""
    known = [pair for pair in zip(candidate.model, candidate.probability, strict=True) if None not in pair]
    return any(not math.isclose(before or 0.0, after or 0.0, rel_tol=1e-4) for before, after in known)


def _candidates_table(candidates: Sequence[CandidatePair], ruled: bool) -> Table:
    """`ruled`: whether probabilities under the model are others than after the rules, and have columns of their own."""

    def percentage(value: float | None) -> str:
        return "–" if value is None else format_percent(value) if value else "out"

    columns = (
        Column("candidate", "token", min_width=8),
        *((Column("model 1", "number"), Column("model 2", "number")) if ruled else ()),
        Column("prob. 1", "number"),
        Column("prob. 2", "number"),
        Column("", "bar", priority=4),
        Column("", "bar", priority=4),
    )
    rows = (
        TableRow(
            (
                visible(candidate.text),
                *map(percentage, candidate.model if ruled else ()),
                *map(percentage, candidate.probability),
                *(float(probability or 0.0) for probability in candidate.probability),
            )
        )
        for candidate in candidates
    )
    return Table(columns, tuple(rows))
