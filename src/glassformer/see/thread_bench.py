"""How fast a machine is with each of several numbers of threads, and which one is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.page.format import pluralize


@dataclass(frozen=True)
class Machine:
    """What may be used of a machine, and how."""

    processor: str
    cores: int
    fast_cores: int
    logical_processors: int
    quota: float | None  # how many processors' time a container may use
    level: str  # instruction set
    pinned: bool

    @property
    def line(self) -> str:
        cores = pluralize(self.cores, "core")
        if self.fast_cores < self.cores:
            cores += f", {self.fast_cores} of them fast"
        if self.logical_processors > self.cores:
            cores += f", {self.logical_processors} hyper-threads"
        quota = [] if self.quota is None else [f"quota of {self.quota:g} processors"]
        return " · ".join([self.processor, cores, *quota, self.level, "pinned" if self.pinned else "not pinned"])


@dataclass(frozen=True)
class ThreadSpeed:
    """The speed of one text in tokens per second; `bandwidth`: the bytes of weights that decoding reads in a second."""

    threads: int
    decode: float
    prefill: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class ThreadBench:
    machine: Machine
    model: str | None  # None: weights of a model's shapes, without its numbers
    weight_bytes: int
    speeds: tuple[ThreadSpeed, ...]
    disturbed: bool  # whether other programs took a part of the processors
    chosen: int  # the row that is marked
    conclusion: str
    kept: str | None  # the file that keeps it

    def to_dict(self) -> dict[str, Any]:
        """As plain data, to hundredths; columns that were not measured are left out."""
        rows = [
            {name: round(value, 2) for name, value in asdict(speed).items() if value is not None} for speed in self.speeds
        ]
        return {**asdict(self), "speeds": rows}

    def __rich__(self) -> RenderableType:
        return Group(Text(self.machine.line), _table(self.speeds, self.chosen), Text(self.conclusion))


def _table(speeds: Iterable[ThreadSpeed], chosen: int) -> Table:
    """A row for each number of threads; columns that were not measured are left out."""
    columns: dict[str, Callable[[ThreadSpeed], str | None]] = {
        "threads": lambda row: str(row.threads),
        "decode, tokens/s": lambda row: f"{row.decode:,.1f}",
        "weights read": lambda row: f"{row.bandwidth / 1e9:,.1f} GB/s" if row.bandwidth else None,
        "prefill, tokens/s": lambda row: f"{row.prefill:,.0f}" if row.prefill else None,
    }
    rows = [(speed.threads == chosen, {name: text(speed) for name, text in columns.items()}) for speed in speeds]
    measured = [name for name in columns if all(row[name] for _, row in rows)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for name in measured:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for is_chosen, row in rows:
        table.add_row(*(row[name] for name in measured), "◀" if is_chosen else "", style="bold" if is_chosen else "")
    return table
