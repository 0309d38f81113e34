"""The curves of a training: its loss, the loss on held-out examples and the learning rate, over its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Line, LineChart, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import pluralize
from glassformer.views.view import View

MAX_SAMPLES = 3  # unless everything is shown
STEP = "step"


@dataclass(frozen=True)
class CurvePoint:
    """A number after so many steps; where there are many steps, the mean of some up to this one."""

    step: int
    value: float


@dataclass(frozen=True)
class HeldOutEvaluation:
    """The model on examples that it is not trained on."""

    step: int
    loss: float
    measures: Mapping[str, float]  # such as perplexity


@dataclass(frozen=True)
class TrainingSample:
    """What the model wrote after so many steps."""

    step: int
    text: str


@dataclass(frozen=True)
class TrainingCurves(View):
    """How far a training is, and its numbers on the way there."""

    SCHEMA = "glassformer.training-curves/1"

    name: str  # of its folder
    step: int  # done so far
    steps: int | None  # in all; None: not known
    loss: tuple[CurvePoint, ...]  # nats per token
    learning_rate: tuple[CurvePoint, ...]
    gradient_norm: tuple[CurvePoint, ...]  # before it is clipped
    held_out: tuple[HeldOutEvaluation, ...]
    samples: tuple[TrainingSample, ...]  # the last ones
    snapshots: tuple[int, ...]  # after which steps the model was kept
    tokens: int  # read so far
    tokens_per_second: float | None  # lately
    writes: bool  # whether the model writes text, so that snapshots can be asked what comes next

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    def __repr__(self) -> str:
        return f"TrainingCurves({self.name}, step {self.step})"


def draw(view: TrainingCurves, everything: bool = False) -> Page:
    title = f"{view.name}: how the training goes"
    lines = [Line("loss", _points(view.loss))]
    if view.held_out:
        lines.append(Line("held-out loss", tuple((float(at.step), at.loss) for at in view.held_out), marked=True))
    parts: list[PagePart] = [
        Heading(title),
        Paragraph(progress(view)),
        LineChart("loss, in nats per token", tuple(lines), STEP),
        LineChart("learning rate", (Line("learning rate", _points(view.learning_rate)),), STEP, from_zero=True),
    ]
    if everything:
        parts.append(LineChart("gradient norm", (Line("gradient norm", _points(view.gradient_norm)),), STEP, from_zero=True))
    if view.held_out:
        parts += [Heading("on held-out examples"), _evaluations(view.held_out)]
    if view.samples:
        parts.append(Heading("what it wrote"))
        for sample in view.samples if everything else view.samples[-MAX_SAMPLES:]:
            parts += [Paragraph(f"after step {sample.step:,}", "dim"), Paragraph(sample.text)]
    if view.snapshots:
        kept = ", ".join(f"{step:,}" for step in view.snapshots)
        more = ": with a prompt, glass learning shows what each makes of it" if view.writes else ""
        parts.append(Paragraph(f"snapshots after steps {kept}{more}", "dim"))
    return Page(title, tuple(parts))


def progress(view: TrainingCurves) -> str:
    """How far it is, in words."""
    of = "" if view.steps is None else f" of {view.steps:,}"
    speed = "" if view.tokens_per_second is None else f" · {view.tokens_per_second:,.0f} tokens/s"
    return f"step {view.step:,}{of} · {pluralize(view.tokens, 'token')} read{speed}"


def _points(points: Sequence[CurvePoint]) -> tuple[tuple[float, float], ...]:
    return tuple((float(point.step), point.value) for point in points)


def _evaluations(evaluations: Sequence[HeldOutEvaluation]) -> Table:
    names = list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.measures))
    columns = [Column(name.replace("_", " "), "number") for name in (STEP, "loss", *names)]
    rows = []
    for evaluation in evaluations:
        measures = (evaluation.measures.get(name) for name in names)
        numbers = ("" if value is None else f"{value:,.4g}" for value in measures)
        rows.append(TableRow((f"{evaluation.step:,}", f"{evaluation.loss:.4f}", *numbers)))
    return Table(tuple(columns), tuple(rows))
