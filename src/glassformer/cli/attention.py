"""`glass attention`: who looked at whom."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.cli.options import CHANGING, SHOWING, WORDING, Changing, Showing, Wording, bundled
from glassformer.errors import InputError

if TYPE_CHECKING:
    from glassformer.views.view import View

EXAMPLE = (
    'Example: glass attention --raw "The cat sat because it was tired." --layer 3 --head 1   ·   '
    'glass attention --raw "The cat sat because it was tired." --token it --rollout'
)


@bundled
def attention(
    prompt: common.PromptArgument = None,
    layer: Annotated[int | None, typer.Option("--layer", "-l", help="Which layer; -1 is the last.")] = None,
    head: Annotated[int | None, typer.Option("--head", help="Which head of it; without one, their mean.")] = None,
    token: Annotated[
        str | None, typer.Option("--token", "-t", help="What this token looked at: its position or its text.")
    ] = None,
    mean: Annotated[bool, typer.Option("--mean", help="The mean of all layers and heads.")] = False,
    rollout: Annotated[bool, typer.Option("--rollout", help="All layers, followed down to the first.")] = False,
    kind: Annotated[str, typer.Option("--kind", help="self; of an encoder-decoder also cross or encoder.")] = "self",
    target: Annotated[str | None, typer.Option("--target", help="What an encoder-decoder is to write of the text.")] = None,
    new: Annotated[int, typer.Option("-n", "--max-new-tokens", min=0, help="First write so many tokens.")] = 0,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FOLDER", help="Write all maps to disk, a .npy file for each layer."),
    ] = None,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:
    """Show which tokens each token looked at: one map, one token's row, or all heads at once."""
    from glassformer.observe.attention import SITES, extent

    text = common.read_prompt(prompt)
    if mean and (layer is not None or rollout):
        raise InputError(f"--mean is over all layers. Leave out {'--rollout' if layer is None else '--layer'}.")
    loaded = load.open()
    reading = word.reading(loaded, text, target, new)
    if record is not None:
        extent(reading, kind)  # type: ignore[arg-type]
        patterns = SITES[kind].format("*")
        cost = reading.cost(patterns)
        common.note(f"{cost.summary(len(reading))} in {record}")
        with common.counting(f"{load.model} reads") as progress:
            files = reading.record(patterns, folder=record, progress=progress)
        print(*files, sep="\n")
        return
    with common.counting(f"{load.model} reads") as progress:
        found: View
        if layer is None and not (mean or rollout) and token is None and head is None:
            found = reading.heads(kind=kind, progress=progress)  # type: ignore[arg-type]
        else:
            found = reading.attention(layer, head, kind=kind, rollout=rollout, progress=progress)  # type: ignore[arg-type]
            found = found if token is None else found.of(token)
    shown.show(found)
