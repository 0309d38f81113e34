"""Batch jobs of `glass run` and `glass task`: a file in, a file out, a bar meanwhile, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from glassformer.cli import bars, common
from glassformer.cli.command import OptionGroup, option
from glassformer.ground.errors import SettingError
from glassformer.page.format import pluralize

if TYPE_CHECKING:
    from glassformer.jobs import JobProgress, JobSummary
    from glassformer.runtime.model import Model
    from glassformer.tasks import Task

STDOUT = "-"  # in place of an output file
OutOption = Annotated[
    Path | None,
    option(
        "--out",
        metavar="FILE",
        help="Write the answers of --file here, .jsonl or .parquet, and go on if it was stopped; '-': to stdout.",
    ),
]
BatchSizeOption = Annotated[
    int | None, option("--batch-size", minimum=1, maximum=4096, help="Rows that are written together; by default 32.")
]
RayOption = Annotated[
    str | None,
    option("--ray", metavar="ADDRESS", help="A Ray cluster to run on: HOST:PORT, auto: this machine's, local: a new one."),
]
WorkersOption = Annotated[
    int | None,
    option("--workers", minimum=1, maximum=100_000, help="Workers on the cluster; by default one per GPU, or per machine."),
]


@dataclass(frozen=True)
class BatchGroup(OptionGroup):
    """A file of rows instead of a prompt."""

    HEADING = "Batch job"

    file: Annotated[
        Path | None,
        option(
            "--file", "-f", metavar="FILE", help="Answer each row: .jsonl, .parquet, OpenAI's batch, or a text per line."
        ),
    ] = None
    out: OutOption = None
    batch_size: BatchSizeOption = None
    ray: RayOption = None
    workers: WorkersOption = None


def run_batch(
    load: Callable[[], Model | Task],
    file: Path,
    out: Path,
    *,
    batch_size: int | None = None,
    ray: str | None = None,
    workers: int | None = None,
    gpus: bool | None = None,
    as_json: bool = False,
    shown: str | None = None,
    **keywords: Any,
) -> None:
    """Run a job, here or on a cluster; exit code 1 when a row has failed, 130 when somebody stops it.

    `shown`: what the output is called, where nobody will find it under its name.
    """
    check_workers(ray, workers)
    if str(out) == STDOUT:
        if as_json:
            raise SettingError("--json prints a summary, and --out - the answers. Leave one out.")
        from tempfile import TemporaryDirectory  # which costs a little of each start

        with TemporaryDirectory(prefix="glass-batch-") as folder, answers_on_stdout(Path(folder) / "stdout.jsonl") as target:
            run_batch(
                load, file, target, batch_size=batch_size, ray=ray, workers=workers, gpus=gpus, shown="stdout", **keywords
            )
        return
    job: Callable[..., JobSummary]
    if ray is None:
        from glassformer.jobs import run_job

        job = partial(run_job, load())
    else:
        from glassformer.scale import run_job as run_job_on_cluster

        common.log_to_stderr()
        job = partial(run_job_on_cluster, load, address=ray, workers=workers, gpus=gpus)
    last: JobProgress | None = None
    try:
        with bars.job_bar(shown or str(out)) as show:

            def progress(state: JobProgress) -> None:
                nonlocal last
                last = state
                show(state.rows, state.total, state.failed, state.tokens)

            summary = job(file, out, batch_size=batch_size, progress=progress, **keywords)
    except KeyboardInterrupt:
        finished = "" if last is None else f" after {last.rows:,} of {pluralize(last.total, 'row')}"
        again = "Nothing is kept of it: --out FILE would go on." if shown else "Run the same command again to go on."
        raise KeyboardInterrupt(f"stopped{finished}. {again}") from None
    if as_json:
        common.print_json(summary.to_dict())
    else:
        common.note(summary_line(summary, shown))
    if summary.failed:
        common.note(f"glass: {summary.failed:,} of {pluralize(summary.rows, 'row')} failed; their error says why.")
        raise click.exceptions.Exit(1)


def check_workers(ray: str | None, workers: int | None, option: str = "--workers") -> None:
    """Refuse a number of workers without a cluster to have them on."""
    if ray is None and workers is not None:
        raise SettingError(f"{option} is for a cluster. Pass --ray ADDRESS, or --ray local.")


@contextmanager
def answers_on_stdout(target: Path) -> Iterator[Path]:
    """A file whose lines are printed in the end, if it was written."""
    try:
        yield target
    finally:
        if target.exists():
            with target.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    common.print_line(line.rstrip("\n"))


def summary_line(summary: JobSummary, shown: str | None = None) -> str:
    """A finished job in a line."""
    output = shown or summary.output
    rows = pluralize(summary.rows, "row")
    if summary.rows and summary.resumed == summary.rows:
        return f"{rows} in {output}: all were finished before"
    before = f", {summary.resumed:,} of them before" if summary.resumed else ""
    tokens = f"{summary.prompt_tokens:,} → {pluralize(summary.completion_tokens, 'token')}"
    return f"{rows} in {output}{before} · {tokens} · {summary.seconds:,.1f} s"
