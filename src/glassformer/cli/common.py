"""What the verbs share: options, reading a prompt, notes on stderr, a progress bar."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.errors import InputError, SettingError

if TYPE_CHECKING:
    from glassformer.progress import NamedProgress
    from glassformer.runtime.model import Model
    from glassformer.views.view import View

ModelOption = Annotated[
    str,
    typer.Option("--model", "-m", envvar="GLASS_MODEL", help="A catalogue name, a hub id, or a path.", show_default=True),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Feed the text as it is, without the chat template.")]
SystemOption = Annotated[str | None, typer.Option("--system", help="A system message before the prompt.")]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option("--template", metavar="NAME=VALUE", help="A variable for the chat template, such as enable_thinking=true."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Give the result as JSON.")]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="What PyTorch computes in: float32, bfloat16, …; by default as stored.")
]
ExecutorOption = Annotated[str, typer.Option("--executor", help="cpu (native code), plain (PyTorch), or auto: the best.")]
WeightsOption = Annotated[
    str | None, typer.Option("--weights", help="Pack a folder's weights: q8_0, q4_1, q4_k, …; once, then from the cache.")
]
CacheOption = Annotated[
    str | None, typer.Option("--cache", help="What keys and values are kept in: f32, f16, bf16; or q8, half of f16.")
]
ActivationsOption = Annotated[
    str | None,
    typer.Option("--activations", help="What inputs of packed weights are rounded to: q14; or q8, faster, coarser."),
]
PromptArgument = Annotated[
    str | None, typer.Argument(help="The text; '-' or nothing reads it from stdin.", show_default=False)
]
DEFAULT_MODEL = "smollm2"


def note(text: str) -> None:
    """A line for the person, beside the data."""
    print(text, file=sys.stderr)


def say(piece: str, lay: Callable[[str], str] = str) -> None:
    """A piece of an answer, at once. On a terminal its control characters are told, not obeyed, and `lay` puts it into
    lines; elsewhere it is as it is."""
    if sys.stdout.isatty():
        from glassformer.page.format import tame

        piece = lay(tame(piece))
    sys.stdout.write(piece)
    sys.stdout.flush()


def read_text(given: str | None, name: str) -> str:
    """A text that was given, or what stdin holds."""
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin.isatty():
        raise typer.BadParameter("say something, or pipe a text in.", param_hint=name)
    try:
        text = sys.stdin.read().rstrip("\n")
        text.encode("utf-8", "surrogateescape").decode("utf-8")  # what was no text has come in as something else
        return text
    except UnicodeDecodeError as error:
        raise no_text(error) from error


def no_text(error: UnicodeDecodeError | UnicodeEncodeError) -> InputError:
    """What is said of bytes that came in and are no text."""
    return InputError(f"the input is not {error.encoding} text ({error.reason}). Convert it first.")


def read_prompt(given: str | None) -> str:
    text = read_text(given, "PROMPT")
    if not text.strip():
        raise InputError("the prompt is empty. Say something.")
    return text


def variables(given: list[str] | None) -> dict[str, Any]:
    """The chat template's."""
    return pairs(given, "--template", "enable_thinking=true")


def pairs(given: list[str] | None, option: str, example: str) -> dict[str, Any]:
    """NAME=VALUE pairs; values are JSON where they can be read as such (or as Python says true, false, null), else text."""
    found: dict[str, Any] = {}
    for pair in given or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SettingError(f"{option} {pair!r} is not NAME=VALUE, such as {example}.")
        if name in found:
            raise SettingError(f"{option} says {name} twice. Leave one out.")
        try:
            found[name] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except ValueError:
            found[name] = value
    return found


def json_or_file(given: str | None, option: str) -> Any:
    """JSON that was given as such, or as a file that holds it."""
    if given is None:
        return None
    text = given
    if not given.lstrip().startswith(("{", "[", "true", "false")):
        try:
            text = Path(given).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{option} {given!r} is neither JSON nor a file that can be read: {error}") from error
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{option}: {given if text is not given else 'the text'} is not JSON: {error}.") from error


def open_model(name: str, **how: Any) -> Model:
    """Load for a verb: with a progress bar while fetching, and the library's notes as plain lines."""
    from glassformer.runtime.model import load

    listen()
    with progress_bar() as progress:
        return load(name, progress=progress, **how)


def show(found: View, *, as_json: bool = False, everything: bool = False, save: Path | None = None) -> None:
    """Print a view, for people or as JSON; or write it to a file in the form that its name asks for."""
    if save is not None:
        print(found.save(save))
        return
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    from glassformer.page.terminal import Drawn

    Console().print(Drawn(found.page(everything)))


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar while something is counted up, on a terminal; it goes when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner on a terminal while nothing else can be shown yet."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what}…"):
        yield


def listen() -> None:
    """The library's notes as plain lines on stderr."""
    notes = logging.getLogger("glassformer")
    if not notes.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("glass: %(message)s"))
        notes.addHandler(handler)
        notes.propagate = False


@contextmanager
def progress_bar() -> Iterator[NamedProgress]:
    """A bar that appears when something is fetched or packed; off a terminal, one line when it begins."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, disable=not console.is_terminal)
    tasks: dict[str, Any] = {}

    def progress(what: str, so_far: int, total: int) -> None:
        if what not in tasks:
            if not console.is_terminal:
                note(f"{what} ({total // 1_000_000} MB)")
            bar.start()
            tasks[what] = bar.add_task(what, total=total)
        bar.update(tasks[what], completed=min(so_far, total))

    try:
        yield progress
    finally:
        if tasks:
            bar.stop()
