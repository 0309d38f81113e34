"""Why a token was chosen: the model's score of each candidate, what each rule did to it, and what decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glassformer.decoding import Step
from glassformer.decoding.waterfall import Waterfall
from glassformer.ground.errors import InputError
from glassformer.ground.operations import operation
from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, visible
from glassformer.see.protocols import RunLike
from glassformer.see.tokens import find_token
from glassformer.see.view import View
from glassformer.text import Tokenizer
from glassformer.text.streaming import shown_bytes

MAX_CANDIDATES = 12  # unless everything is shown
SHORT_NAMES = {  # of rules, as columns
    "repetition_penalty": "repetition", "presence_penalty": "presence", "frequency_penalty": "frequency",
    "dry_multiplier": "dry", "no_repeat_ngram_size": "n-grams", "guidance_scale": "guidance", "xtc_probability": "xtc",
}  # fmt: skip
LEGEND = "model: its score · in play: candidates left · entropy: in bits"


@dataclass(frozen=True)
class ExplainedCandidate:
    """One candidate and its score after each rule."""

    id: int
    text: str
    scores: tuple[float | None, ...]  # the model's, then after each rule; None: removed
    probability: float  # after all rules
    removed_by: str | None
    chosen: bool


@dataclass(frozen=True)
class Why(View):
    """Why one token was chosen."""

    SCHEMA = "glassformer.why/1"

    number: int  # of the token: 0 is the first after the prompt
    text: str
    rules: tuple[str, ...]
    counts: tuple[int, ...]  # candidates left: at first, then after each rule
    entropies: tuple[float, ...]  # of the candidates left, in bits
    candidates: tuple[ExplainedCandidate, ...]  # best first, under the model
    draw: float | None
    logprob: float | None  # of the chosen token, under the model
    finish: str | None
    beams: int = 1  # above 1, a token is chosen for the whole text that it is part of

    @property
    def entropy(self) -> float:
        """Of the model's probabilities, in bits."""
        return self.entropies[0]

    def page(self, everything: bool = False) -> Page:
        return Page(sentence(self), (*_choice_parts(self, everything), Paragraph(LEGEND, "dim")))

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
        """One token after the other."""
        settings = "\n".join(f"{name}: {value}" for name, value in self.settings.items())
        parts: list[PagePart] = [Heading("the settings in force"), Paragraph(settings, "dim")]
        for why in self.whys:
            chosen = next(candidate for candidate in why.candidates if candidate.chosen)
            parts += [Heading(f"token {why.number}: {visible(chosen.text)}"), *_choice_parts(why, everything)]
        parts.append(Paragraph(LEGEND, "dim"))
        return Page(f"{self.model}: why each token", tuple(parts))


def _choice_parts(view: Why, everything: bool) -> list[PagePart]:
    idle = [rule for stage, rule in enumerate(view.rules, 1) if _idle(view, stage)]
    note = [Paragraph(f"changed nothing here: {', '.join(idle)}", "dim")] if idle else []
    return [Paragraph(sentence(view)), table(view, everything), *note]


def table(view: Why, everything: bool = False) -> Table:
    """The best candidates and the chosen one; a removed one has no score from the rule on that removed it.

    Rules that changed nothing here have no column; where there is little room, the columns of the first rules are dropped.
    """
    candidates = _shown_candidates(view, everything)
    names = ("log-prob" if view.beams > 1 else "model", *(SHORT_NAMES.get(name, name) for name in view.rules))
    stages = [stage for stage in range(len(names)) if not stage or not _idle(view, stage)]
    priorities = {stage: 9 if stage in (0, stages[-1]) else min(8, 2 + index) for index, stage in enumerate(stages)}
    columns = (
        Column(),
        Column("candidate", "token", min_width=10),
        *(Column(names[stage], "number", priority=priorities[stage]) for stage in stages),
        Column("prob.", "number"),
        Column("", "bar", priority=1),
        Column("removed by", priority=8),
    )
    rows = [
        TableRow(
            (
                "→" if candidate.chosen else "",
                visible(candidate.text),
                *("" if (score := candidate.scores[stage]) is None else f"{score:.2f}" for stage in stages),
                format_percent(candidate.probability) if candidate.probability else "",
                float(candidate.probability),
                candidate.removed_by or "",
            ),
            "chosen" if candidate.chosen else "out" if candidate.removed_by else "",
        )
        for candidate in candidates
    ]
    totals = [
        TableRow(("", "in play", *(f"{view.counts[stage]:,}" for stage in stages), "", 0.0, ""), "dim"),
        TableRow(("", "entropy", *(f"{view.entropies[stage]:.2f}" for stage in stages), "", 0.0, ""), "dim"),
    ]
    return Table(columns, (*rows, *totals))


def _shown_candidates(view: Why, everything: bool) -> list[ExplainedCandidate]:
    limit = len(view.candidates) if everything else MAX_CANDIDATES
    return [*view.candidates[:limit], *(candidate for candidate in view.candidates[limit:] if candidate.chosen)]


def _idle(view: Why, stage: int) -> bool:
    """Whether a rule changed nothing that is shown."""
    same = view.counts[stage] == view.counts[stage - 1]
    shown = _shown_candidates(view, everything=False)
    return same and all(candidate.scores[stage] == candidate.scores[stage - 1] for candidate in shown)


def sentence(view: Why) -> str:
    """The choice in one line."""
    chosen = next(candidate for candidate in view.candidates if candidate.chosen)
    how = "the best" if view.draw is None else f"picked by the draw {view.draw:.4f}"
    if view.beams > 1:
        how = f"part of the best text of {view.beams} beams,"
    end = f"; the text ended: {view.finish}" if view.finish else ""
    return f"token {view.number}: {visible(chosen.text)} (id {chosen.id}), {how} out of {view.counts[-1]:,} in play{end}"


def why(tokenizer: Tokenizer, step: Step, number: int, beams: int = 1) -> Why:
    """One step for people; it must have a waterfall."""
    fall: Waterfall | None = step.waterfall
    if fall is None:
        raise InputError("this step kept no account of its rules. Get the run with watch(…), or watch_many(…, look=10).")
    candidates = tuple(
        ExplainedCandidate(
            fate.id,
            shown_bytes(tokenizer.token_bytes(fate.id)),
            tuple(None if score == float("-inf") else score for score in fate.scores),
            fate.probability,
            fate.removed_by,
            fate.id == step.id,
        )
        for fate in fall
    )
    text = shown_bytes(tokenizer.token_bytes(step.id))
    finish = step.finish.value if step.finish else None
    account = (fall.stages[1:], fall.counts, fall.entropies)
    return Why(number, text, *account, candidates, step.draw, step.logprob, finish, beams)


def step_index(run: RunLike, step: int | str) -> int:
    """A step of a run by its index, which may count from the end, or by its token's text."""
    if isinstance(step, str):
        return find_token(step, [shown_bytes(run.model.tokenizer.token_bytes(one.id)) for one in run.steps])
    if not -len(run.steps) <= step < len(run.steps):
        raise InputError(f"there is no token {step} in a text of {len(run.steps)}.")
    return step % len(run.steps)


@operation(name="why")
def why_of_run(run: RunLike, number: int | str = 0) -> Why:
    """Why a token was chosen: what the model thought of each candidate, and what each rule did to it."""
    index = step_index(run, number)
    return why(run.model.tokenizer, run.steps[index], index, run.settings.num_beams)


@operation(is_property=True)
def whys(run: RunLike) -> Whys:
    """Why each token was chosen, and the settings that were in force."""
    settings = {name: f"{value} ({where})" for name, (value, where) in run.settings.in_force.items()}
    return Whys(run.model.name, settings, tuple(why_of_run(run, index) for index in range(len(run.steps))))
