"""`glass task`: texts in, answers out: labels, entities, gaps filled, passages found, vectors, translations."""

from __future__ import annotations

import json
import sys
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.errors import GlassError, InputError

if TYPE_CHECKING:
    from glassformer.tasks import Task

ENDINGS = (".jsonl", ".ndjson")
RESERVED = {  # what `pipeline` is told otherwise
    "task": "; say it first", "model": "; say it with --model", "dtype": "; say it with --dtype",
    "torch_dtype": "; say it with --dtype", "progress": "",
}  # fmt: skip
EXAMPLE = (
    "Example: glass task similarity 'How old are you?' 'What is your age?'   ·   "
    "glass task embed -f lines.txt > vectors.jsonl   ·   glass task, which lists them"
)
Name = Annotated[str | None, typer.Argument(metavar="TASK", help="Which task; without one, they are listed.")]
Texts = Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="The texts; without any, lines of stdin.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="A catalogue name, a hub id, or a path.")]
Files = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", help="Texts from a file, one per line; of a .jsonl each line is JSON. '-' is stdin."),
]
Context = Annotated[str | None, typer.Option(help="For question-answering: where the answer is; or give it with --file.")]
Chosen = Annotated[
    list[str] | None, typer.Option("--option", "-o", metavar="NAME=VALUE", help="An option of the task, such as top_k=3.")
]
Limit = Annotated[int | None, typer.Option("--max-new-tokens", "-n", help="For tasks that write: at most so many tokens.")]


def task(
    name: Name = None,
    texts: Texts = None,
    model: Model = None,
    files: Files = None,
    whole: Annotated[bool, typer.Option("--whole", help="A file is one text, not one per line.")] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Lines are JSON, whatever the file's name; stdin's too.")] = False,
    context: Context = None,
    options: Chosen = None,
    max_new_tokens: Limit = None,
    dtype: common.DtypeOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Label, find, fill, translate, compare: a task over texts, files or stdin.

    Texts from files and stdin, and any with --json, give one line of JSON each: {"input": …, "output": …}, or
    {"input": …, "error": …} for a text that cannot be answered.
    """
    if name is None:
        listed(as_json)
        return
    from glassformer.tasks.choosing import find

    kind, _ = find(name)
    chosen = common.pairs(options, "--option", "top_k=3")
    if max_new_tokens is not None:
        chosen["max_new_tokens"] = max_new_tokens
    if kind.name == "token-classification":
        chosen.setdefault("aggregation_strategy", "simple")  # whoever asks in a terminal wants names, not pieces of them
    for reserved, instead in RESERVED.items():
        if reserved in chosen:
            raise typer.BadParameter(f"{reserved!r} is no option of a task{instead}.", param_hint="--option")
    given = items(kind.name, texts or [], files or [], context, whole=whole, jsonl=jsonl)
    ready = opened(name, model, dtype, chosen)
    from_lines = as_json or not texts or (bool(files) and kind.name != "question-answering")
    if not (as_lines if from_lines else as_text)(ready, given):
        raise typer.Exit(1)


def opened(name: str, model: str | None, dtype: str | None, options: dict[str, Any]) -> Task:
    """The task over its model, with a bar while that is fetched."""
    from glassformer.tasks import pipeline

    common.listen()
    with common.progress_bar() as progress:
        return pipeline(name, model, dtype=dtype, progress=progress, **options)


# What is asked -------------------------------------------------------------------------------------------------------


class Broken(InputError):
    """A line that cannot be read; it is answered with this."""

    def __init__(self, line: str, why: str) -> None:
        super().__init__(why)
        self.line = line


def items(
    task: str, texts: Sequence[str], files: Sequence[str], context: str | None, *, whole: bool = False, jsonl: bool = False
) -> Iterable[Any]:
    """The inputs that a command line means."""
    asks = task == "question-answering"
    if context is not None and not asks:
        raise typer.BadParameter("only question-answering looks into a context.", param_hint="--context")
    if context is not None and (files or not texts):
        raise typer.BadParameter("it goes with questions as TEXT, and without --file.", param_hint="--context")
    if files.count("-") > 1:
        raise typer.BadParameter("stdin can be read only once.", param_hint="--file")
    if asks and not texts and not jsonl and any(not file.endswith(ENDINGS) for file in files):
        raise typer.BadParameter("what is the question? A --file alone must be .jsonl, with both in it.", param_hint="TEXT")
    if not texts and not files:
        if sys.stdin.isatty():
            raise typer.BadParameter("say something, name a --file, or pipe lines in.", param_hint="TEXT")
        files = ["-"]
    if asks and texts:
        if context is None and not files:
            raise typer.BadParameter("where is the answer? Give --context or --file.", param_hint="--context")
        where = context if context is not None else "\n".join(_read(file) for file in files)
        return [{"question": text, "context": where} for text in texts]
    read = chain.from_iterable([_read(file)] if whole else _lines(file, jsonl or file.endswith(ENDINGS)) for file in files)
    if not texts:
        return read
    if task != "similarity":
        return [*texts, *read]
    every = [*texts, *read]
    if len(every) < 2:
        raise InputError("similarity compares the first text with the others: give at least two.")
    return [(every[0], other) for other in every[1:]]


def _opened(file: str) -> Any:
    """A file or stdin, as bytes."""
    try:
        return sys.stdin.buffer if file == "-" else Path(file).expanduser().open("rb")
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}.") from error


def _read(file: str) -> str:
    with _opened(file) as held:
        try:
            return str(held.read(), "utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}). Convert it first.") from error


def _lines(file: str, jsonl: bool) -> Iterator[Any]:
    """A file's lines as they come, so that an endless stdin is answered too; one that cannot be read is a `Broken`."""
    with _opened(file) as held:
        for number, raw in enumerate(held, 1):
            line = raw.removeprefix(BOM_UTF8) if number == 1 else raw
            try:
                text = str(line, "utf-8").rstrip("\r\n")
                yield json.loads(text) if jsonl else text
            except UnicodeDecodeError as error:
                text = str(line, "utf-8", "replace").rstrip("\r\n")
                yield Broken(text, f"{file}, line {number}: not UTF-8 text ({error.reason}). Convert it first.")
            except (ValueError, RecursionError) as error:
                yield Broken(text, f"{file}, line {number}: not valid JSON ({error}).")


# What is answered ----------------------------------------------------------------------------------------------------


def as_lines(task: Task, given: Iterable[Any]) -> bool:
    """One line of JSON per input, as soon as it is there; False when one could not be answered."""
    failed = 0
    with counting(given) as count:
        kept: list[Any] = []  # inputs that are read but not yet answered
        for found in task.stream(_kept(given, kept)):
            given_line = kept.pop(0)
            wrong = isinstance(found, GlassError)
            line = {"input": getattr(given_line, "line", given_line), ("error" if wrong else "output"): plain(found)}
            failed += wrong
            print(written(line), flush=not kept)
            count()
    if failed:
        common.note(f"glass: {failed} of the texts could not be answered; their lines say why.")
    return not failed


def _kept(given: Iterable[Any], kept: list[Any]) -> Iterator[Any]:
    for one in given:
        kept.append(one)
        yield one


def as_text(task: Task, given: Iterable[Any]) -> bool:
    """For people."""
    from rich.console import Console

    from glassformer.cli.answers import answers

    asked = list(given)
    with common.waiting(f"loading {task.model.name} and reading"):
        found = list(task.stream(asked))
    good = [(one, answer) for one, answer in zip(asked, found, strict=True) if not isinstance(answer, GlassError)]
    if good:
        Console().print(answers(task.name, good))
    for one, answer in zip(asked, found, strict=True):
        if isinstance(answer, GlassError):
            common.note(f"glass: {answer}" if len(asked) == 1 else f"glass: {one!r}: {answer}")
    return len(good) == len(asked)


def written(line: Any) -> str:
    """A line of JSON: as people read it, or in escapes where it holds what is no character."""
    text = json.dumps(line, ensure_ascii=False)
    return json.dumps(line) if any("\ud800" <= character <= "\udfff" for character in text) else text


def plain(found: Any) -> Any:
    """An answer as JSON has it."""
    if isinstance(found, GlassError):
        return str(found)
    return found.tolist() if hasattr(found, "tolist") else found


@contextmanager
def counting(given: Iterable[Any]) -> Iterator[Any]:
    """A count of answers on a terminal, where the answers themselves go elsewhere."""
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    total = len(given) if isinstance(given, Sequence) else None
    columns = (TextColumn("answered"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False) as bar:  # answers go where they are sent
        number = bar.add_task("answered", total=total)
        yield lambda: bar.advance(number)


def listed(as_json: bool) -> None:
    """All tasks, what each needs, and an example."""
    from glassformer.tasks import TASKS

    if as_json:
        rows = [
            {
                "name": name,
                "about": one.about,
                "model": one.model_name,
                "suggested": one.suggested,
                "example": one.example,
                "options": [field.name for field in fields(one.Options)],
            }
            for name, one in TASKS.items()
        ]
        print(json.dumps(rows, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("task", "gives", "model", box=None, pad_edge=False)
    for name, one in TASKS.items():
        table.add_row(name, one.about, one.model_name or f"[dim]-m {one.suggested}[/]")
    Console().print(table)
    common.note("Where the model reads -m, there is none that comes without a hub: name that one, or its like.")
