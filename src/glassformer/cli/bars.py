"""Progress on stderr: a spinner, and bars for what is counted, fetched or worked through."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from glassformer.page.format import escape_control, pluralize

if TYPE_CHECKING:
    from glassformer.ground.progress import NamedProgress, Progress


@contextmanager
def spinner(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on a terminal while nothing else can be shown yet; yields what replaces the text beside it."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(escape_control(f"{what}…"))) as status:
        yield lambda text: status.update(Text(escape_control(text)))


@contextmanager
def prompt_spinner(tokens: int) -> Iterator[Progress]:
    """A spinner while a prompt is read, with the percentage and the rate of a long one."""
    started = time.perf_counter()
    with spinner(f"reading {pluralize(tokens, 'token')}") as update:

        def progress(done: int, total: int) -> None:
            rate = done / (time.perf_counter() - started)
            update(f"reading {pluralize(total, 'token')}: {done / total:.0%}, {rate:,.0f} tokens/s")

        yield progress


@contextmanager
def counter_bar(what: str) -> Iterator[Progress]:
    """A bar that counts, on a terminal; it disappears at the end."""
    with stage_bar(what) as progress:
        yield partial(progress, what)


@contextmanager
def stage_bar(what: str) -> Iterator[NamedProgress]:
    """A bar that counts one thing after another; `what`: until the first of them."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn(), progress.MofNCompleteColumn())
    with progress.Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(escape_control(what), total=None)
        yield lambda what, done, total: bar.update(task, description=escape_control(what), completed=done, total=total)


@contextmanager
def job_bar(what: str) -> Iterator[Callable[[int, int, int, int], None]]:
    """A bar for a job, on a terminal: rows, those that failed, and tokens per second; told (rows, total, failed, tokens)."""
    if not sys.stderr.isatty():
        yield lambda rows, total, failed, tokens: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rows{task.fields[about]}", markup=False),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(escape_control(what), total=None, about="")
        started: float | None = None

        def show(rows: int, total: int, failed: int, tokens: int) -> None:
            nonlocal started
            started = time.perf_counter() if started is None else started
            rate = tokens / max(time.perf_counter() - started, 1e-9)
            about = (f", {failed:,} failed" if failed else "") + (f" · {rate:,.0f} tokens/s" if tokens else "")
            bar.update(task, completed=rows, total=total, about=about)

        yield show


@contextmanager
def download_bar() -> Iterator[NamedProgress]:
    """A bar for each thing that is fetched or packed, once it begins; off a terminal, a line each."""
    bar: Any = None  # made when there is something to show: its import takes longer than a model takes to open
    tasks: dict[str, Any] = {}

    def progress(what: str, done: int, total: int) -> None:
        nonlocal bar
        bar = bar or _byte_bar()
        if what not in tasks:
            if not bar.console.is_terminal:
                print(escape_control(f"{what} ({total // 1_000_000} MB)"), file=sys.stderr)
            bar.start()
            tasks[what] = bar.add_task(escape_control(what), total=total)
        bar.update(tasks[what], completed=min(done, total))

    try:
        yield progress
    finally:
        if tasks:
            bar.stop()


def _byte_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


@contextmanager
def work_bar(what: str, *, in_bytes: bool = True) -> Iterator[NamedProgress]:
    """One bar for a job of many parts, on a terminal: how many bytes are done, or how many percent."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    amount = DownloadColumn() if in_bytes else TaskProgressColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=not in_bytes) as bar:
        task = bar.add_task(escape_control(what), total=None)
        yield lambda _, done, total: bar.update(task, completed=done, total=total)
