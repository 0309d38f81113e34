"""A training on the terminal: how far it is, its losses as a curve, and what the model writes by now."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from glassformer.cli import common
from glassformer.page.format import escape_control, pluralize
from glassformer.training.events import Evaluated, Event, Sampled, StepDone

if TYPE_CHECKING:
    from glassformer.training.trainer import Trainer

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60  # columns of the curve
QUIET = 30.0  # seconds after which a line is printed where there is no terminal
RECENT = 20  # steps that the shown loss and speed are a mean of


class TrainingDisplay:
    """What is known of a training so far, in words."""

    def __init__(self, steps: int, done: int) -> None:
        self.steps, self.first = steps, done
        self.losses: list[float] = []
        self.recent: list[StepDone] = []
        self.evaluated: Evaluated | None = None
        self.sample: Sampled | None = None
        self.started = time.perf_counter()

    def add(self, event: Event) -> None:
        match event:
            case StepDone():
                self.losses.append(event.loss)
                self.recent = [*self.recent, event][-RECENT:]
            case Evaluated():
                self.evaluated = event
            case Sampled():
                self.sample = event

    @property
    def step(self) -> int:
        return self.recent[-1].step if self.recent else self.first

    def status(self) -> str:
        """One line: losses, speed and the time that is left."""
        if not self.recent:
            return f"step {self.first} of {self.steps}"
        loss = sum(step.loss for step in self.recent) / len(self.recent)
        seconds = sum(step.seconds for step in self.recent)
        speed = sum(step.tokens for step in self.recent) / seconds
        left = (time.perf_counter() - self.started) / max(1, self.step - self.first) * (self.steps - self.step)
        parts = [f"step {self.step} of {self.steps}", f"loss {_short(loss)}", *self.held_out()]
        return " · ".join([*parts, f"{speed:,.0f} tokens/s", f"{clock(left)} left"])

    def held_out(self) -> list[str]:
        """The last evaluation, in words."""
        if self.evaluated is None:
            return []
        measures = [f"{_short(value)} {name.replace('_', ' ')}" for name, value in self.evaluated.measures.items()]
        *parts, last = [f"held-out {_short(self.evaluated.loss)}", *measures]
        return [*parts, f"{last} on {pluralize(self.evaluated.examples, 'example')}"]


def _short(value: float) -> str:
    """A measure with three decimals; a perplexity can have hundreds of digits.

    >>> _short(2.5), _short(1e300)
    ('2.500', '1e+300')
    """
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def plan(trainer: Trainer) -> str:
    """What lies ahead."""
    settings, objective = trainer.settings, trainer.objective
    epochs = settings.steps * settings.batch_size / objective.examples
    return (
        f"{pluralize(objective.examples, objective.unit)} to learn from, {objective.held_out:,} held out; "
        f"{pluralize(settings.steps, 'update')} of {pluralize(settings.batch_size, objective.unit)}, {epochs:.1f} epochs"
    )


def curve(values: Sequence[float], width: int) -> str:
    """Values as a line of blocks, each column the mean of some, the largest the highest.

    >>> curve([3.0, 2.0, 1.0], 3)
    '█▅▁'
    """
    if not values:
        return ""
    count = min(width, len(values))
    bounds = [column * len(values) // count for column in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(bounds)]
    low, high = min(means), max(means)
    spread = high - low or 1.0
    return "".join(BLOCKS[round((mean - low) / spread * (len(BLOCKS) - 1))] for mean in means)


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def reports(steps: int, done: int, as_json: bool) -> Iterator[Callable[[Event], None]]:
    """What is called with each event: a live display on a terminal, lines elsewhere, JSON where it was asked for."""
    display = TrainingDisplay(steps, done)
    if as_json:
        yield lambda event: common.print_json(event.to_dict(), flush=True)
    elif sys.stderr.isatty():
        with _live(display) as update:
            yield update
    else:
        printer = LinePrinter(display)
        try:
            yield printer
        finally:
            printer.finish()


class LinePrinter:
    """Prints evaluations and samples, and between them how far the training is, so that a log is never silent for long."""

    def __init__(self, display: TrainingDisplay) -> None:
        self.display, self.printed, self.step = display, display.started, display.first

    def __call__(self, event: Event) -> None:
        self.display.add(event)
        now = time.perf_counter()
        if isinstance(event, Evaluated) or (isinstance(event, StepDone) and now - self.printed >= QUIET):
            self._print(now)
        elif isinstance(event, Sampled):
            common.note(f"  {escape_control(event.text)!r}")

    def finish(self) -> None:
        """The last loss is printed in any case."""
        if self.step != self.display.step:
            self._print(time.perf_counter())

    def _print(self, now: float) -> None:
        common.note(self.display.status())
        self.printed, self.step = now, self.display.step


@contextmanager
def _live(display: TrainingDisplay) -> Iterator[Callable[[Event], None]]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    def picture() -> Any:
        parts = [Text(display.status(), style="bold")]
        if display.losses:
            ends = f"loss {display.losses[0]:.2f} "
            parts.append(Text(ends + curve(display.losses, WIDTH) + f" {display.losses[-1]:.2f}"))
        if display.sample is not None:
            text = escape_control(display.sample.text)
            parts += [Text(f"after step {display.sample.step} it writes:", style="dim"), Text(text)]
        return Group(*parts)

    with Live(picture(), console=Console(stderr=True), refresh_per_second=4) as live:

        def update(event: Event) -> None:
            display.add(event)
            live.update(picture())

        yield update
