"""`glass lens`: the logit lens of each layer, and the logit attribution of a token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli import bars, common
from glassformer.cli.command import option
from glassformer.cli.options import ChangeableModelGroup, OutputGroup, PromptGroup
from glassformer.cli.text_input import read_prompt
from glassformer.ground.errors import InputError
from glassformer.ground.files import prepared_target

if TYPE_CHECKING:
    from glassformer.views.view import View

EXAMPLE = (
    'Example: glass lens --raw "The capital of France is"   ·   glass lens --raw "The capital of France is" --wrote " Paris"'
    "   ·   glass lens --train lines.txt --out lens.safetensors"
)


def lens(
    prompt: common.PromptArgument = None,
    token: Annotated[
        list[str] | None, option("--token", "-t", help="After this token: its position or its text; repeatable.")
    ] = None,
    wrote: Annotated[
        str | None,
        option(
            "--wrote", metavar="TEXT", help="Attribute this next token's lead to blocks and heads; 'best': the top token."
        ),
    ] = None,
    against: Annotated[
        str | None, option("--against", metavar="TEXT", help="With --wrote: its lead over this token, not the runner-up.")
    ] = None,
    metric: Annotated[
        str | None, option("--metric", help="With --wrote: lead, or logit: the token's own; by default lead.")
    ] = None,
    centred: Annotated[
        bool, option("--centred", help="With --wrote: the logit less the mean over the vocabulary, as TransformerLens does.")
    ] = False,
    target: common.TargetOption = None,
    tuned: Annotated[
        Path | None, option("--tuned", metavar="FILE", help="Read the layers through a tuned lens that --train wrote.")
    ] = None,
    train: Annotated[
        Path | None,
        option("--train", metavar="FILE", help="Train a tuned lens on texts: one on each line, or of .jsonl or .csv."),
    ] = None,
    out: Annotated[Path | None, option("--out", metavar="FILE", help="With --train: write the lens, .safetensors.")] = None,
    steps: Annotated[int, option("--steps", minimum=0, maximum=100_000, help="With --train: how long.")] = 150,
    new: common.GeneratedFirstOption = 0,
    *,
    model_options: ChangeableModelGroup,
    prompt_options: PromptGroup,
    output: OutputGroup,
) -> None:
    """Show what each layer would predict next, and where the answer emerges; or which blocks and heads wrote it."""
    if train is not None:
        if prompt is not None or tuned is not None or wrote is not None:
            raise InputError("--train reads the texts of its file. Leave the prompt, --tuned and --wrote out.")
        output.show(_train(train, out, steps, model_options))
        return
    if out is not None:
        raise InputError("--out is where --train writes a lens. Give --train FILE, or leave it out.")
    text = read_prompt(prompt)
    if tuned is not None and wrote is not None:
        raise InputError("--wrote attributes the model's own score, which no lens changes. Leave --tuned out.")
    if wrote is not None and len(token or ()) > 1:
        raise InputError("--wrote is about one position. Give --token once.")
    if against is not None and wrote is None:
        raise InputError("--against is compared with the token of --wrote. Pass --wrote too.")
    if metric is not None and wrote is None:
        raise InputError("--metric is about the token of --wrote. Pass --wrote too.")
    if centred and wrote is None:
        raise InputError("--centred is about the score of --wrote. Pass --wrote too.")
    model = model_options.load()
    reading = prompt_options.read(model, text, target, new)
    with bars.counter_bar(f"{model_options.model} reads") as progress:
        view: View
        if wrote is not None:
            chosen = None if wrote == "best" else wrote
            place = token[0] if token else -1
            choices: dict[str, Any] = {"metric": metric or "lead", "centred": centred}
            view = reading.attribution(place, chosen, against, **choices)
        else:
            lens = None if tuned is None else model.load_lens(tuned)
            places = token or (range(len(reading)) if output.everything else None)
            view = reading.lens(places, tuned=lens, progress=progress)
    output.show(view)


def _train(texts: Path, out: Path | None, steps: int, model_options: ChangeableModelGroup) -> View:
    from glassformer.cli.text_files import TextFile

    if out is None or out.suffix != ".safetensors":
        raise InputError("where does the lens go? Give --out with the name of a .safetensors file.")
    with prepared_target(out):
        file = TextFile(texts)
        model = model_options.load()
        with common.explained_interrupt("No lens was kept."), bars.counter_bar("training a lens") as progress:
            trained = model.read_many(file).train_lens(steps=steps, progress=progress)
        trained.save(out)
    assert trained.view is not None
    return trained.view
