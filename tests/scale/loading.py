"""What workers load: tiny models, some of which die or differ."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import glassformer
from glassformer.decoding.loop import Loop
from glassformer.runtime.model import Model
from glassformer.serving.registry import ModelSource
from glassformer.tasks import Task, pipeline


def load_model(folder: Path, pids: Path | None = None, pass_seconds: float = 0.0) -> Model:
    """A model of a folder; which process has it is noted as the name of a file."""
    if pids is not None:
        (pids / str(os.getpid())).touch()
    if pass_seconds:
        slow_passes(pass_seconds)
    return glassformer.load(folder, executor="cpu")


def load_embedder(folder: Path) -> Task:
    return pipeline("embed", str(folder))


def load_mortal(folder: Path, deaths: Path, count: int, passes: int) -> Model:
    """A model that ends its process after so many passes; the next one, and so on, `count` times."""
    number = len(list(deaths.iterdir()))
    (deaths / str(os.getpid())).touch()
    if number < count:
        left, step = iter(range(passes)), Loop.step

        def step_or_die(self: Loop) -> Any:
            if next(left, None) is None:
                os._exit(1)
            return step(self)

        Loop.step = step_or_die  # type: ignore[method-assign]
    return glassformer.load(folder, executor="cpu")


def load_poisonable(folder: Path) -> Model:
    """A model whose process ends where it is to answer `poison`."""
    start = Model.start

    def start_or_die(self: Model, prompt: Any, **keywords: Any) -> Any:
        if prompt == "poison":
            os._exit(1)
        return start(self, prompt, **keywords)

    Model.start = start_or_die  # type: ignore[method-assign, assignment]
    return glassformer.load(folder, executor="cpu")


def load_either(folder: Path, loads: Path) -> Model:
    """A model on one executor in the first process, and on another in the second, both ready at about the same time."""
    (loads / str(os.getpid())).touch()
    while len(pids := sorted(int(path.name) for path in loads.glob("[0-9]*"))) < 2:
        time.sleep(0.01)
    model = glassformer.load(folder, executor="cpu" if os.getpid() == pids[0] else "plain")
    model.executor.describe()
    (loads / f"ready {os.getpid()}").touch()
    while len([*loads.glob("ready *")]) < 2:
        time.sleep(0.01)
    return model


def slow_sources(folder: Path, pids: Path, pass_seconds: float) -> list[ModelSource]:
    """A model called `tiny` whose passes take so long; which processes serve it is noted."""
    return [ModelSource("tiny", partial(load_model, folder, pids, pass_seconds), aliases=("gpt-4o",))]


def slow_passes(seconds: float) -> None:
    step = Loop.step

    def slow_step(self: Loop) -> Any:
        time.sleep(seconds)
        return step(self)

    Loop.step = slow_step  # type: ignore[method-assign]
