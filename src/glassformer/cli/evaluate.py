"""`glass eval`: how well a model predicts a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from glassformer.cli import bars
from glassformer.cli.command import argument, option
from glassformer.cli.options import CHANGEABLE_MODEL_GROUP, OUTPUT_GROUP, ChangeableModelGroup, OutputGroup
from glassformer.errors import InputError

EXAMPLE = "Example: glass eval --text book.txt   ·   glass eval qwen3-0.6b --text book.txt --stride 256 --json"


def evaluate(
    text: Annotated[Path, option("--text", "-f", metavar="FILE", help="A text file.")],
    name: Annotated[str | None, argument(metavar="MODEL", help="The model, instead of --model.")] = None,
    window: Annotated[int, option(help="Tokens that are read together.", minimum=2)] = 512,
    stride: Annotated[
        int | None, option(help="Tokens that each window adds; fewer than --window give each more context.", minimum=1)
    ] = None,
    model: ChangeableModelGroup = CHANGEABLE_MODEL_GROUP,
    output: OutputGroup = OUTPUT_GROUP,
) -> None:
    """Say how well a model predicts a text: loss, perplexity, and bits per byte, which compares any models."""
    from glassformer.observe.perplexity import evaluate as evaluate_text

    try:
        content = text.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{text}: not UTF-8 text ({error.reason} at byte {error.start}). Convert it first.") from error
    except OSError as error:
        raise InputError(f"{text}: cannot be read: {error.strerror}. Check the path and its permissions.") from error
    loaded = model.load(name)
    with bars.counter_bar("scoring tokens") as progress:
        view = evaluate_text(loaded, content, window=window, stride=stride, progress=progress)
    output.show(view)
