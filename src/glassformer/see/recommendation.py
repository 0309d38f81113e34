"""Which models of the catalogue fit a machine, and how fast they will be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.page.format import format_bytes, format_count, pluralize

READING = 10.0  # tokens per second, about twice as fast as people read
ERROR = 0.25  # of a predicted speed: bench/recommend.py holds it against models of true shapes


@dataclass(frozen=True)
class ModelFit:
    """A model with its weights in one kind."""

    name: str
    kind: str
    quantized: bool  # whether loading packs them in this kind, once (`--weights`)
    parameters: int
    context: int
    licence: str
    gated: bool
    here: bool
    weight_bytes: int
    cache_bytes: int  # of keys and values
    memory: int  # with the headroom
    fits: bool | None  # None: nobody says how much memory is free
    tokens_per_second: float | None  # None: not measured, such as of a GPU, or of a model that writes nothing

    @property
    def speed(self) -> tuple[float, float] | None:
        """Between which tokens per second it will be."""
        if self.tokens_per_second is None:
            return None
        return (1 - ERROR) * self.tokens_per_second, (1 + ERROR) * self.tokens_per_second

    @property
    def command(self) -> str:
        verb = "glass run" if self.tokens_per_second is not None or self.context > 512 else "glass task similarity"
        return f"{verb} -m {self.name}" + (f" --weights {self.kind.lower()}" if self.quantized else "")


@dataclass(frozen=True)
class Recommendation:
    device: str
    free: int | None  # bytes
    context: int  # tokens that room is left for, at the most
    threads: int | None  # that speeds were measured with
    disturbed: bool  # whether other programs took a part of the processors meanwhile
    candidates: tuple[ModelFit, ...]  # what fits first, the largest of them at the top
    best: ModelFit | None

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {
                **asdict(one),
                "tokens_per_second": None if one.speed is None else round(one.tokens_per_second or 0, 2),
                "speed": None if one.speed is None else [round(bound, 2) for bound in one.speed],
                "command": one.command,
            }
            for one in self.candidates
        ]
        return {**asdict(self), "candidates": rows, "best": None if self.best is None else self.best.command}

    def __rich__(self) -> RenderableType:
        return Group(_table(self.candidates, self.best), Text(self.conclusion))

    @property
    def conclusion(self) -> str:
        where = "the GPU" if self.device.startswith("cuda") else "this machine"
        free = "an unknown amount" if self.free is None else format_bytes(self.free)
        kept = f", keys and values of {self.context:,} tokens," if any(one.cache_bytes for one in self.candidates) else ""
        lines = [f"memory: weights{kept} and headroom; {free} is free on {where}."]
        if self.threads is not None:
            lines.append(
                f"tokens/s: computed from what was measured here on {pluralize(self.threads, 'thread')}, ±{ERROR:.0%}."
            )
        if self.disturbed:
            lines.append("Other programs disturbed the measurement: tomorrow it is measured again.")
        if self.best is not None:
            lines.append(f"Take {self.best.command}")
            if self.best.gated and not self.best.here:
                lines.append(f"{self.best.name} is gated: accept its terms on the hub, and log in with 'hf auth login'.")
        else:
            least = min(self.candidates, key=lambda one: one.memory)
            lines.append(
                f"Nothing fits: the smallest is {least.name}, which takes {format_bytes(least.memory)}. End other "
                "programs, or leave room for fewer tokens with --context."
            )
        return "\n".join(lines)


def _table(candidates: Sequence[ModelFit], best: ModelFit | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("weights", no_wrap=True)
    for name in ("parameters", "memory", "tokens/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for one in candidates:
        low_high = "" if one.speed is None else f"{_number(one.speed[0])} to {_number(one.speed[1])}"
        marks = [*(["here"] if one.here else []), *(["too large"] if one.fits is False else [])]
        table.add_row(
            one.name, one.kind, format_count(one.parameters), format_bytes(one.memory), low_high,
            "◀" if one is best else ", ".join(marks),
            style="bold" if one is best else "dim" if one.fits is False else "",
        )  # fmt: skip
    return table


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}"
