"""`glass look`: the journey of a prompt to its next token; or what a config says of a model, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli import common
from glassformer.cli.options import CHANGING, SHOWING, WORDING, Changing, Showing, Wording, bundled
from glassformer.errors import SettingError

if TYPE_CHECKING:
    from glassformer.checkpoint import Checkpoint, Stored
    from glassformer.opened import Opened

EXAMPLE = (
    'Example: glass look "how are you?"   ·   glass look --raw "Today" --json   ·   glass look --blueprint --length 100'
)


@bundled
def look(
    prompt: common.PromptArgument = None,
    pair: Annotated[
        str | None, typer.Option("--pair", help="A second text, for a model that reads two: the passage of a question, ….")
    ] = None,
    blueprint: Annotated[
        bool, typer.Option("--blueprint", help="Shapes, modules and counts from the config alone: nothing is loaded or run.")
    ] = False,
    length: Annotated[
        int | None, typer.Option("--length", help="With --blueprint: for so many tokens (16), instead of a prompt's.", min=1)
    ] = None,
    load: Changing = CHANGING,
    word: Wording = WORDING,
    shown: Showing = SHOWING,
) -> None:
    """Show how a text becomes the next token: prompt, ids, every shape, scores, choice, and what it took."""
    if blueprint:
        planned(load.model, prompt, length, shown)
        return
    if length is not None:
        raise SettingError("--length is for --blueprint: a prompt has the length that it has. Leave it out.")
    text = common.read_prompt(prompt)
    loaded = load.open()
    with common.waiting(f"loading {load.model} and reading the prompt"):
        found = loaded.look(text, pair=pair, **word.how())
    shown.show(found)


def planned(model: str, prompt: str | None, length: int | None, shown: Showing) -> None:
    """What a config says of a model; for a prompt's tokens, if one is given and its tokenizer is here."""
    from glassformer.observe.plan import LENGTH, plan

    if prompt is not None and length is not None:
        raise SettingError("a prompt and --length both say how many tokens there are. Leave one out.")
    found = configured(model)
    if prompt is not None:
        length = len(found.tokenizer(common.read_prompt(prompt))["input_ids"])
    shown.show(plan(found.blueprint(), length or LENGTH, name=model))


def configured(name: str) -> Opened:
    """A model of which only the config is needed; of one from the hub, no weights are fetched."""
    from glassformer.checkpoint import open_at
    from glassformer.checkpoint.catalogue import CATALOGUE, Hub
    from glassformer.checkpoint.locate import held, locate
    from glassformer.opened import Opened

    common.listen()
    wanted = name
    if name in CATALOGUE and not Path(name).exists() and held(name) is None:
        wanted = next((one.repository for one in CATALOGUE[name].sources if isinstance(one, Hub) and not one.file), name)
    with common.progress_bar() as progress:
        path = locate(wanted, "config", progress)
    made: Checkpoint = Alone(path) if path.suffix == ".json" else open_at(path)
    return Opened(name, made)


@dataclass
class Alone:
    """A config.json by itself, where a checkpoint would be."""

    path: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        from glassformer.checkpoint.folder import read_json

        return read_json(self.path)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return {}
