"""What a training has written of itself: its metrics, read as far as they are, and further while it goes on.

The file grows without end, so what is kept of it does not: where there are more steps than a curve has points, each point is
the mean of some of them, and of the samples the last ones stay.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.checkpoint.training_layout import ABOUT, METRICS, SNAPSHOTS, step_folders
from glassformer.ground.errors import InputError
from glassformer.page.document import Column, Heading, Line, LineChart, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import pluralize
from glassformer.see.view import View

SHOWN_SAMPLES = 3  # unless everything is shown
STEP = "step"


@dataclass(frozen=True)
class CurvePoint:
    """A number after a step; where there are many steps, the mean of some up to this one."""

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
    """What the model wrote after a step."""

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
        title = f"{self.name}: how the training goes"
        lines = [Line("loss", _points(self.loss))]
        if self.held_out:
            lines.append(
                Line("held-out loss", tuple((float(point.step), point.loss) for point in self.held_out), marked=True)
            )
        parts: list[PagePart] = [
            Paragraph(progress(self)),
            LineChart("loss, in nats per token", tuple(lines), STEP),
            LineChart("learning rate", (Line("learning rate", _points(self.learning_rate)),), STEP, from_zero=True),
        ]
        if everything:
            parts.append(
                LineChart("gradient norm", (Line("gradient norm", _points(self.gradient_norm)),), STEP, from_zero=True)
            )
        if self.held_out:
            parts += [Heading("on held-out examples"), _evaluations(self.held_out)]
        if self.samples:
            parts.append(Heading("what it wrote"))
            for sample in self.samples if everything else self.samples[-SHOWN_SAMPLES:]:
                parts += [Paragraph(f"after step {sample.step:,}", "dim"), Paragraph(sample.text)]
        if self.snapshots:
            kept = ", ".join(f"{step:,}" for step in self.snapshots)
            more = ": with a prompt, glass learning shows what each makes of it" if self.writes else ""
            parts.append(Paragraph(f"snapshots after steps {kept}{more}", "dim"))
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"TrainingCurves({self.name}, step {self.step})"


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


MAX_POINTS = 400  # of a curve
MAX_EVALUATIONS = 400  # the last ones
MAX_SAMPLES = 40
MAX_SAMPLE = 2000  # characters of one
MAX_LINE = 1 << 20  # bytes; a longer one was not written by a training
MAX_ABOUT = 16 << 20
CHUNK = 1 << 22  # bytes that are read at once
RECENT = 20  # steps that the speed is a mean of
OWN = ("kind", "step", "loss", "seconds", "examples", "time")  # of an evaluation; what else it holds are its measures


class Curve:
    """Numbers by step, at most `most`: when they become more, each two neighbours become one."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        self.most, self.size = most, 1  # steps to a point
        self._sums: list[tuple[int, float, int]] = []  # the last step, the sum, the count

    def add(self, step: int, value: float) -> None:
        if self._sums and self._sums[-1][2] < self.size:
            _, total, count = self._sums[-1]
            self._sums[-1] = step, total + value, count + 1
            return
        if len(self._sums) == self.most:
            pairs = zip(self._sums[::2], self._sums[1::2], strict=True)
            self._sums = [(b[0], a[1] + b[1], a[2] + b[2]) for a, b in pairs]
            self.size *= 2
        self._sums.append((step, value, 1))

    @property
    def points(self) -> tuple[CurvePoint, ...]:
        return tuple(CurvePoint(step, total / count) for step, total, count in self._sums)


class TrainingLog:
    """The metrics of one training's folder. Each reading takes up where the one before has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clear()

    def _clear(self) -> None:
        self._offset = 0
        self._file: object = None  # by which a new file is told from one that has grown
        self._rest = b""  # of a line that is not complete yet
        self._loss, self._rate, self._norm = Curve(), Curve(), Curve()
        self._evaluations: deque[HeldOutEvaluation] = deque(maxlen=MAX_EVALUATIONS)
        self._samples: deque[TrainingSample] = deque(maxlen=MAX_SAMPLES)
        self._speeds: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._step = self._tokens = 0

    def read(self) -> TrainingCurves:
        """All that there is by now."""
        name = self.folder.resolve().name  # no more of the path: a server tells it to others
        try:
            with (self.folder / METRICS).open("rb") as file:
                status = os.fstat(file.fileno())
                if (status.st_dev, status.st_ino) != self._file or status.st_size < self._offset:
                    self._clear()  # written anew, by a training that goes on from an earlier step
                    self._file = status.st_dev, status.st_ino
                file.seek(self._offset)
                while data := file.read(CHUNK):
                    self._offset += len(data)
                    self._add_lines(data)
        except FileNotFoundError:
            above = self.folder.resolve().parent
            if (above / METRICS).is_file():
                raise InputError(f"{name}: is inside the folder of a training, {above.name}. Name that one.") from None
            raise InputError(
                f"{name}: holds no training ({METRICS}). Name the folder of one, or begin it: glass train --out {name}"
            ) from None
        except OSError as error:
            raise InputError(f"{name}/{METRICS}: cannot be read ({error.strerror}). Check its permissions.") from error
        if not self._loss.points:
            raise InputError(
                f"{name}/{METRICS}: no step of a training stands in it. Wait for its first, or name another folder."
            )
        about, seconds = self._about(), sum(time for _, time in self._speeds)
        steps = about.get("steps")
        known = isinstance(steps, int) and steps > 0
        return TrainingCurves(
            name, self._step, steps if known else None, self._loss.points, self._rate.points, self._norm.points,
            tuple(self._evaluations), tuple(self._samples), tuple(step_folders(self.folder / SNAPSHOTS)), self._tokens,
            sum(tokens for tokens, _ in self._speeds) / seconds if seconds > 0 else None, about.get("writes") is not False,
        )  # fmt: skip

    def _about(self) -> dict[str, Any]:
        """What the training is, by its own file; nothing where that cannot be read."""
        try:
            with (self.folder / ABOUT).open("rb") as file:
                about = json.loads(file.read(MAX_ABOUT))
        except (OSError, ValueError, RecursionError):
            return {}
        return about if isinstance(about, dict) else {}

    def _add_lines(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:MAX_LINE]
        for line in lines:
            try:
                value = json.loads(line) if len(line) <= MAX_LINE else None
            except (ValueError, RecursionError):
                continue  # cut off, when a training was killed
            if isinstance(value, dict):
                self._add(value)

    def _add(self, line: Mapping[str, Any]) -> None:
        step = line.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            return
        kind, loss = line.get("kind"), _number(line.get("loss"))
        if kind == "step" and loss is not None:
            self._step = step
            self._loss.add(step, loss)
            for curve, name in ((self._rate, "learning_rate"), (self._norm, "gradient_norm")):
                if (value := _number(line.get(name))) is not None:
                    curve.add(step, value)
            tokens, seconds = _number(line.get("tokens")), _number(line.get("seconds"))
            if tokens is not None and seconds is not None:
                self._tokens += int(tokens)
                self._speeds.append((int(tokens), seconds))
        elif kind == "evaluation" and loss is not None:
            measures = {name: number for name in line if name not in OWN and (number := _number(line[name])) is not None}
            self._evaluations.append(HeldOutEvaluation(step, loss, measures))
        elif kind == "sample" and isinstance(text := line.get("text"), str):
            self._samples.append(TrainingSample(step, text[:MAX_SAMPLE]))


def _number(value: Any) -> float | None:
    """A number that can be drawn, if it is one."""
    drawn = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if drawn else None


def read_training(folder: str | Path) -> TrainingCurves:
    """The curves of a training, out of its folder."""
    return TrainingLog(Path(folder)).read()
