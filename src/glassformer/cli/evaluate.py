"""`glass eval`: how well a model predicts a text, or does a task on rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars
from glassformer.cli.command import argument, option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup
from glassformer.cli.text_input import read_text_file
from glassformer.ground.errors import InputError, SettingError

if TYPE_CHECKING:
    from glassformer.see.view import View

EXAMPLE = (
    "Example: glass eval --text book.txt   ·   glass eval qwen3-0.6b --text book.txt --stride 256 --json   ·   "
    "glass eval mood --task classify --data reviews.csv"
)

WINDOW = 512  # tokens


def evaluate(
    name: Annotated[str | None, argument(metavar="MODEL", help="The model, instead of --model.")] = None,
    text: Annotated[Path | None, option("--text", "-f", metavar="FILE", help="A text file.")] = None,
    task: Annotated[
        str | None, option(help="Measure a task on --data: classify, tag (words) or seq2seq (text to text).")
    ] = None,
    data: Annotated[Path | None, option(help="The task's rows: .jsonl or .csv.", metavar="FILE")] = None,
    length: Annotated[int | None, option(help="With --task: tokens of a text, at most.", minimum=2)] = None,
    window: Annotated[int | None, option(help="Tokens that are read together: 512, if not said.", minimum=2)] = None,
    stride: Annotated[
        int | None, option(help="Tokens that each window adds; fewer than --window give each more context.", minimum=1)
    ] = None,
    *,
    model: ChangeableModelGroup,
    output: OutputGroup,
) -> None:
    """Say how well a model predicts a text, or does a task on rows: perplexity, bits per byte; accuracy, F1, ….

    Bits per byte compare models of any vocabularies.
    """
    if (text is None) == (task is None and data is None):
        raise SettingError("what is measured? Give --text FILE, or --task and --data FILE.")
    if length is not None if text is not None else window is not None or stride is not None:
        raise SettingError("--length goes with --task, and --window and --stride with --text. Leave it out.")
    if text is not None:
        output.show(_evaluate_text(text, name, window or WINDOW, stride, model))
    elif task is None or data is None:
        raise SettingError("--task and --data go together: what is measured, and the rows that it is measured on.")
    else:
        output.show(_evaluate_task(task, data, name, length, model))


def _evaluate_text(text: Path, name: str | None, window: int, stride: int | None, model: ChangeableModelGroup) -> View:
    from glassformer.see.evaluation import evaluate as evaluate_text

    content = read_text_file(text)
    loaded = model.load(name)
    with bars.counter_bar("scoring tokens") as progress:
        return evaluate_text(loaded, content, window=window, stride=stride, progress=progress)


def _evaluate_task(task: str, data: Path, name: str | None, length: int | None, model: ChangeableModelGroup) -> View:
    from glassformer.tasks.registry import HEADS
    from glassformer.training.task_evaluation import evaluate_task
    from glassformer.training.task_kinds import find_kind

    kind = find_kind(task)
    for changed in ("change", "steer", "clamp"):
        if getattr(model, changed):
            raise SettingError(f"--{changed} goes with --text. Leave one of them out.")
    loaded = model.load(name)
    if loaded.head != kind.head:
        raise InputError(
            f"--task {task} needs a model with {HEADS[kind.head]}, and {loaded.name} has {HEADS[loaded.head]}. Train one: "
            f"glass train --task {task} --data FILE --init MODEL --out FOLDER"
        )
    with bars.counter_bar("reading rows") as progress:
        return evaluate_task(task, loaded.module, loaded.tokenizer, data, length, loaded.name, progress)
