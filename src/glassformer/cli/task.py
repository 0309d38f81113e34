"""`glass task`: texts in, answers out: labels, entities, filled gaps, passages, vectors, translations."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from glassformer.cli import bars, common
from glassformer.cli.batch import OutOption, RayOption, WorkersOption, check_workers, run_batch
from glassformer.cli.command import argument, option
from glassformer.ground.errors import GlassError, InputError, SettingError

if TYPE_CHECKING:
    from glassformer.tasks import Task

ENDINGS = (".jsonl", ".ndjson")
RESERVED = {  # arguments of `pipeline` that are no options of the task, and what to use instead
    "task": "; it is the first argument", "model": "; use --model", "dtype": "; use --dtype", "adapter": "; use --adapter",
    "torch_dtype": "; use --dtype", "progress": "",
}  # fmt: skip
EXAMPLE = (
    "Example: glass task similarity 'How old are you?' 'What is your age?'   ·   "
    "glass task embed -f lines.txt > vectors.jsonl   ·   glass task embed -f lines.txt --out vectors.parquet   ·   "
    "glass task, which lists them"
)
NameArgument = Annotated[str | None, argument(metavar="TASK", help="The task; without one, all are listed.")]
TextsArgument = Annotated[list[str] | None, argument(metavar="TEXT", help="The texts; without any, lines of stdin.")]
ModelNameOption = Annotated[str | None, option("--model", "-m", help="A catalogue name, a hub id, or a path.")]
FilesOption = Annotated[
    list[str] | None,
    option("--file", "-f", help="A file with a text per line, or JSON per line if .jsonl; '-' is stdin."),
]
ContextOption = Annotated[str | None, option(help="For question-answering: the text with the answer; or use --file.")]
TaskOption = Annotated[
    list[str] | None, option("--option", "-o", metavar="NAME=VALUE", help="An option of the task, such as top_k=3.")
]
NewTokensOption = Annotated[
    int | None, option("--max-new-tokens", "-n", help="For tasks that generate: the tokens, at most.")
]


def task(
    name: NameArgument = None,
    texts: TextsArgument = None,
    model: ModelNameOption = None,
    files: FilesOption = None,
    whole: Annotated[bool, option("--whole", help="Each file is one text, not one per line.")] = False,
    jsonl: Annotated[bool, option("--jsonl", help="Lines are JSON, whatever the file's name.")] = False,
    context: ContextOption = None,
    options: TaskOption = None,
    max_new_tokens: NewTokensOption = None,
    dtype: common.DtypeOption = None,
    adapter: common.AdapterOption = None,
    threads: common.ThreadsOption = None,
    as_json: common.JsonOption = False,
    out: OutOption = None,
    ray: RayOption = None,
    workers: WorkersOption = None,
) -> None:
    """Classify, extract, fill, translate, compare: a task over texts, files or stdin.

    Texts from files and stdin, and any with --json, give one line of JSON each: {"input": …, "output": …}, or
    {"input": …, "error": …} for a text that has no answer. With --out they go to a file, and a run that was stopped goes on.
    """
    if name is None:
        list_tasks(as_json)
        return
    from glassformer.tasks.registry import find_task

    task_name = find_task(name)[0].name
    task_options = common.parse_pairs(options, "--option", "top_k=3")
    if max_new_tokens is not None:
        task_options["max_new_tokens"] = max_new_tokens
    if task_name == "token-classification":
        task_options.setdefault("aggregation_strategy", "simple")  # people want entities, not pieces of them
    for reserved, instead in RESERVED.items():
        if reserved in task_options:
            raise click.BadParameter(f"{reserved!r} is no option of a task{instead}.", param_hint="--option")
    if out is not None:
        if texts or len(files or []) != 1 or context is not None or whole or jsonl:
            raise SettingError(
                "--out takes the texts from one --file alone. Leave TEXT, --context, --whole and --jsonl out."
            )
        load = partial(load_task, name, model, dtype, task_options, threads, adapter)
        run_batch(load, Path((files or [])[0]), out, ray=ray, workers=workers, as_json=as_json)
        return
    check_workers(ray, workers)
    if ray is not None:
        raise SettingError("--ray is for batch jobs. Pass one --file with the texts, and --out for the answers.")
    inputs = parse_inputs(task_name, texts or [], files or [], context, whole=whole, jsonl=jsonl)
    loaded = load_task(name, model, dtype, task_options, threads, adapter)
    json_lines = as_json or not texts or (bool(files) and task_name != "question-answering")
    if not (print_json_lines if json_lines else print_answers)(loaded, inputs):
        raise click.exceptions.Exit(1)


def load_task(
    name: str, model: str | None, dtype: str | None, options: dict[str, Any], threads: int | None, adapter: list[str] | None
) -> Task:
    """The task over its model, with a bar while the model is fetched."""
    common.use_threads(threads)
    from glassformer.tasks import pipeline

    common.log_to_stderr()
    with bars.download_bar() as progress:
        return pipeline(
            name, model, dtype=dtype, progress=progress, adapter=common.adapter_weights(adapter), **options
        )  # fmt: skip


# Inputs --------------------------------------------------------------------------------------------------------------


class UnreadableLine(InputError):
    """A line that cannot be read, in place of an input."""

    def __init__(self, line: str, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def parse_inputs(
    task: str, texts: Sequence[str], files: Sequence[str], context: str | None, *, whole: bool = False, jsonl: bool = False
) -> Iterable[Any]:
    """The inputs that a command line names."""
    is_question = task == "question-answering"
    if context is not None and not is_question:
        raise click.BadParameter("only question-answering reads a context.", param_hint="--context")
    if context is not None and (files or not texts):
        raise click.BadParameter("it goes with questions as TEXT, and without --file.", param_hint="--context")
    if files.count("-") > 1:
        raise click.BadParameter("stdin can be read only once.", param_hint="--file")
    if is_question and not texts and not jsonl and any(not file.endswith(ENDINGS) for file in files):
        raise click.BadParameter("what is the question? A --file alone must be .jsonl, with both in it.", param_hint="TEXT")
    if not texts and not files:
        if sys.stdin.isatty():
            raise click.BadParameter("say something, name a --file, or pipe lines in.", param_hint="TEXT")
        files = ["-"]
    if is_question and texts:
        if context is None and not files:
            raise click.BadParameter("where is the answer? Give --context or --file.", param_hint="--context")
        passage = context if context is not None else "\n".join(_read(file) for file in files)
        return [{"question": text, "context": passage} for text in texts]
    from_files = chain.from_iterable(
        [_read(file)] if whole else _lines(file, jsonl or file.endswith(ENDINGS)) for file in files
    )
    if not texts:
        return from_files
    inputs = [*texts, *from_files]
    if task == "rerank":
        return [{"query": inputs[0], "documents": inputs[1:]}]
    if task != "similarity":
        return inputs
    if len(inputs) < 2:
        raise InputError("similarity compares the first text with the others: give at least two.")
    return [(inputs[0], text) for text in inputs[1:]]


def _open_file(file: str) -> Any:
    """A file or stdin, as bytes."""
    try:
        return sys.stdin.buffer if file == "-" else Path(file).expanduser().open("rb")
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.") from error


def _read(file: str) -> str:
    with _open_file(file) as stream:
        try:
            return str(stream.read(), "utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}). Convert it first.") from error


def _lines(file: str, jsonl: bool) -> Iterator[Any]:
    """A file's lines as they come, so that an endless stdin is answered too; or an `UnreadableLine`."""
    with _open_file(file) as stream:
        for number, raw in enumerate(stream, 1):
            line = raw.removeprefix(BOM_UTF8) if number == 1 else raw
            try:
                text = str(line, "utf-8").rstrip("\r\n")
                yield json.loads(text) if jsonl else text
            except UnicodeDecodeError as error:
                text = str(line, "utf-8", "replace").rstrip("\r\n")
                yield UnreadableLine(text, f"{file}, line {number}: not UTF-8 text ({error.reason}). Convert it first.")
            except (ValueError, RecursionError) as error:
                yield UnreadableLine(text, f"{file}, line {number}: not valid JSON ({error}).")


# Answers -------------------------------------------------------------------------------------------------------------


def print_json_lines(task: Task, inputs: Iterable[Any]) -> bool:
    """Print one line of JSON per input, as soon as it is answered; False if one has no answer."""
    from glassformer.tasks.task import json_value

    failed = 0
    with answer_counter(inputs) as count:
        pending: list[Any] = []  # inputs that are read but not yet answered
        for answer in task.stream(_track(inputs, pending)):
            value = pending.pop(0)
            is_error = isinstance(answer, GlassError)
            line = {"input": getattr(value, "line", value), ("error" if is_error else "output"): json_value(answer)}
            failed += is_error
            common.print_json(line, flush=not pending)
            count()
    if failed:
        common.note(f"glass: {failed} of the texts could not be answered; their lines say why.")
    return not failed


def _track(inputs: Iterable[Any], pending: list[Any]) -> Iterator[Any]:
    for value in inputs:
        pending.append(value)
        yield value


def print_answers(task: Task, inputs: Iterable[Any]) -> bool:
    """Print the answers for people; False if an input has none."""
    from rich.console import Console

    from glassformer.cli.answers import render_answers

    values = list(inputs)
    with bars.spinner(f"loading {task.model.name} and reading"):
        answers = list(task.stream(values))
    pairs = list(zip(values, answers, strict=True))
    answered = [(value, answer) for value, answer in pairs if not isinstance(answer, GlassError)]
    if answered:
        Console().print(render_answers(task.name, answered))
    for value, answer in pairs:
        if isinstance(answer, GlassError):
            common.note(f"glass: {answer}" if len(pairs) == 1 else f"glass: {value!r}: {answer}")
    return len(answered) == len(pairs)


@contextmanager
def answer_counter(inputs: Iterable[Any]) -> Iterator[Any]:
    """A count of answers on a terminal, if the answers themselves go elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    total = len(inputs) if isinstance(inputs, Sequence) else None
    columns = (TextColumn("answered"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:  # answers go where they are sent
        number = bar.add_task("answered", total=total)
        yield lambda: bar.advance(number)


def list_tasks(as_json: bool) -> None:
    """Print all tasks, what each gives, and its model."""
    from glassformer.tasks import TASKS

    if as_json:
        rows = [
            {
                "name": name,
                "about": task.about,
                "model": task.model_name,
                "suggested": task.suggested,
                "example": task.example,
                "options": [field.name for field in fields(task.options_type)],
            }
            for name, task in TASKS.items()
        ]
        common.print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "gives", "model", box=None, pad_edge=False)
    for name, task in TASKS.items():
        table.add_row(name, task.about, task.model_name or f"[dim]-m {task.suggested}[/]")
    Console().print(table)
    common.note("A task with -m has no default model: name that one from the hub, or a similar one.")
