"""What the verbs share: options, reading a prompt, printing views, notes on stderr."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from glassformer.cli import bars
from glassformer.cli.command import argument, option
from glassformer.cli.processes import note_model
from glassformer.ground.errors import InputError, SettingError
from glassformer.ground.garbage_collection import collect_as_usual
from glassformer.page.format import escape_control, to_json

if TYPE_CHECKING:
    from glassformer.runtime.model import Model
    from glassformer.see.view import View

ModelOption = Annotated[
    str,
    option("--model", "-m", envvar="GLASS_MODEL", help="A catalogue name, a hub id, or a path.", default_shown=True),
]
RawOption = Annotated[bool, option("--raw", help="Use the text as it is, without the chat template.")]
SystemOption = Annotated[str | None, option("--system", help="A system message before the prompt.")]
TemplateOption = Annotated[
    list[str] | None,
    option("--template", metavar="NAME=VALUE", help="A variable of the chat template, such as enable_thinking=true."),
]
JsonOption = Annotated[bool, option("--json", help="Print JSON.")]
DtypeOption = Annotated[
    str | None, option("--dtype", help="What PyTorch computes in: float32, bfloat16, …; by default as stored.")
]
ExecutorOption = Annotated[str, option("--executor", help="gpu, cpu (native code), plain (PyTorch), or auto: the best.")]
WeightsOption = Annotated[
    str | None, option("--weights", help="Quantize a folder's weights: q8_0, q4_1, q4_k, …; cached for the next time.")
]
CacheOption = Annotated[
    str | None, option("--cache", help="The KV cache's format: f32, f16, bf16; or q8, half the size of f16.")
]
ActivationsOption = Annotated[
    str | None,
    option("--activations", help="What inputs of quantized weights are rounded to: q14; or mixed, q8: faster, coarser."),
]
BatchInvariantOption = Annotated[
    bool,
    option("--batch-invariant/--no-batch-invariant", help="A text's numbers depend on the text alone; no: faster on a GPU."),
]
TensorParallelOption = Annotated[
    int,
    option(
        "--tensor-parallel", metavar="N", minimum=1, maximum=256, help="Split the model among N processes, with PyTorch."
    ),
]
AdapterOption = Annotated[
    list[str] | None,
    option("--adapter", metavar="PATH[:WEIGHT]", help="A LoRA on top: peft's folder or a .gguf file; repeatable."),
]
AdapterModeOption = Annotated[
    str, option("--adapter-mode", help="merged into the weights, or beside them, which stay packed if they are.")
]
ThreadsOption = Annotated[
    int | None, option("--threads", minimum=1, maximum=256, help="Threads to compute with; by default the fastest number.")
]
PromptArgument = Annotated[
    str | None,
    argument(help="The text; what is piped in follows it on a new line. '-': stdin alone.", default_shown=False),
]
TargetOption = Annotated[str | None, option("--target", help="An encoder-decoder's output text.")]
GeneratedFirstOption = Annotated[int, option("-n", "--max-new-tokens", minimum=0, help="Generate this many tokens first.")]
DEFAULT_MODEL = "smollm2"


def note(text: str) -> None:
    """A line on stderr, for people, broken between words on a terminal; stdout is for data."""
    text = escape_control(text)
    if not sys.stderr.isatty():
        print(text, file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(text))


def check_suffix(option: str, path: Path | None) -> None:
    """Refuse a file of arrays whose name does not say so."""
    if path is not None and path.suffix != ".safetensors":
        raise SettingError(f"{option} {path} must end in .safetensors.")


def note_after(text: str) -> None:
    """The same, below what the command shows."""
    click.get_current_context().call_on_close(lambda: note(text))


@contextmanager
def explained_interrupt(sentence: str) -> Iterator[None]:
    """Around long work: Ctrl-C says what became of it, beside that it was stopped."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*interrupt.args or [f"stopped. {sentence}"]) from None


@contextmanager
def reported_interrupt() -> Iterator[None]:
    """Around every verb: Ctrl-C says that it was stopped, or what is known of it, and exits with 130."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort) as interrupt:
        note(f"\nglass: {interrupt if interrupt.args else 'stopped.'}")
        raise click.exceptions.Exit(130) from None


def print_line(line: object) -> None:
    """A line of data on stdout: as it is; on a terminal with control characters made visible."""
    print(escape_control(str(line)) if sys.stdout.isatty() else line)


def print_json(value: Any, *, flush: bool = False) -> None:
    """A line of JSON on stdout: characters as they are, or escaped where stdout's encoding does not have them."""
    text = to_json(value, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(value)
    print(text, flush=flush)


def write_piece(piece: str, wrap: Callable[[str], str] = str) -> None:
    """Write a piece of an answer at once; on a terminal, with control characters made visible and lines broken by `wrap`."""
    if sys.stdout.isatty():
        piece = wrap(escape_control(piece))
    sys.stdout.write(piece)
    sys.stdout.flush()


def template_variables(pairs: list[str] | None) -> dict[str, Any]:
    """The value of --template."""
    return parse_pairs(pairs, "--template", "enable_thinking=true")


def parse_pairs(pairs: list[str] | None, option: str, example: str) -> dict[str, Any]:
    """NAME=VALUE pairs; a value is JSON, or True, False or None, and otherwise text."""
    values: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise SettingError(f"{option} {pair!r} is not NAME=VALUE, such as {example}.")
        if name in values:
            raise SettingError(f"{option} has {name} twice. Leave one out.")
        try:
            values[name] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except (ValueError, RecursionError):
            values[name] = value
    return values


def json_or_file(argument: str | None, option: str) -> Any:
    """JSON, or a file of JSON."""
    if argument is None:
        return None
    text = argument
    if not argument.lstrip().startswith(("{", "[", "true", "false")):
        try:
            text = Path(argument).read_text("utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{option} {argument!r} is neither JSON nor a file that can be read: {error}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{option}: {'the text' if text is argument else argument} is not JSON: {error}.") from error


def adapter_weights(arguments: list[str] | None) -> dict[str, float] | None:
    """The values of --adapter, PATH[:WEIGHT]."""
    weights: dict[str, float] = {}
    for text in arguments or []:
        path, weight = text, 1.0
        if ":" in text and not Path(text).exists():
            with suppress(ValueError):  # a colon of the name itself
                path, weight = text.rpartition(":")[0], float(text.rpartition(":")[2])
        if path in weights:
            raise SettingError(f"--adapter has {path} twice. Leave one out.")
        weights[path] = weight
    return weights or None


def use_threads(threads: int | None) -> None:
    """The value of --threads, for the CPU engine, and for PyTorch, which reads it when it is imported."""
    if threads is not None:
        os.environ["GLASS_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)


def load_model(name: str, **options: Any) -> Model:
    """Load a model for a verb: with a progress bar while fetching, and the library's notes as plain lines."""
    from glassformer.runtime.model import load

    log_to_stderr()
    with bars.download_bar() as progress:
        model = load(name, progress=progress, **options)
    collect_as_usual()
    note_model(model.name)
    return model


def typed(verb: str, model: str, *words: str) -> str:
    """A command as it is typed for a model, which is named where it is not the default."""
    default = os.environ.get("GLASS_MODEL") or DEFAULT_MODEL
    return shlex.join(["glass", verb, *words, *(() if model == default else ("-m", model))])


def show(view: View, *, as_json: bool = False, everything: bool = False, save: Path | None = None) -> None:
    """Print a view, for people or as JSON; or write it to a file, in the format of its suffix."""
    if save is not None:
        print_line(view.save(save))
        return
    if as_json:
        print_json(view.to_dict())
        return
    from rich.console import Console

    from glassformer.page.terminal import TerminalPage

    Console().print(TerminalPage(view.page(everything)))


class _NoteFormatter(logging.Formatter):
    """Log lines as `note` prints them."""

    def format(self, record: logging.LogRecord) -> str:
        return escape_control(super().format(record))


def log_to_stderr() -> None:
    """Print the library's notes as plain lines on stderr."""
    notes = logging.getLogger("glassformer")
    if not notes.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_NoteFormatter("glass: %(message)s"))
        notes.addHandler(handler)
        notes.propagate = False
