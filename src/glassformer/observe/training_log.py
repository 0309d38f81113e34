"""What a training has written of itself: its metrics, read as far as they are, and further while it goes on.

The file grows without end, so what is kept of it does not: where there are more steps than a curve has points, each point is
the mean of some of them, and of the samples the last ones stay.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassformer.checkpoint.training_layout import ABOUT, METRICS, SNAPSHOTS, step_folders
from glassformer.ground.errors import InputError
from glassformer.views.training_curves import CurvePoint, HeldOutEvaluation, TrainingCurves, TrainingSample

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
    """Numbers by step, at most so many: when they become more, each two neighbours become one."""

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
