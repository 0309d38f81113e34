"""A bar while something large is read or written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.progress import NamedProgress


@contextmanager
def working(what: str, sizes: bool = True) -> Iterator[NamedProgress]:
    """A bar that is told how far things are, in bytes or (without `sizes`) as a share; none off a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    told = DownloadColumn() if sizes else TaskProgressColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), told, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=not sizes) as bar:
        task = bar.add_task(what, total=None)
        yield lambda _, so_far, total: bar.update(task, completed=so_far, total=total)
