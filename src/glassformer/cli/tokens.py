"""`glass tokens`: a text as its model's tokens. Only the tokenizer and the config are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.errors import ConfigError, InputError

if TYPE_CHECKING:
    from glassformer.blueprints import Blueprint
    from glassformer.text import Tokenizer

EXAMPLE = 'Example: glass tokens "how are you?"   ·   glass tokens -m minilm "a question" --pair "an answer" --json'


def tokens(
    text: common.PromptArgument = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    pair: Annotated[str | None, typer.Option("--pair", help="A second text, as some models take two.")] = None,
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="With the tokens around a text that the model was trained with.")
    ] = True,
    everything: Annotated[bool, typer.Option("--all", help="Show all tokens of a long text.")] = False,
    as_json: common.JsonOption = False,
) -> None:
    """Show the tokens of a text: ids, spelling, what each stands for, where it stands; and the vocabulary's sizes."""
    from glassformer.observe.tokens import cut

    given = common.read_text(text, "TEXT")
    if not given:  # blanks are tokens too
        raise InputError("the text is empty. Give at least one character.")
    tokenizer, blueprint = opened(model)
    found = cut(tokenizer, given, pair, special=special, name=model, blueprint=blueprint)
    common.show(found, as_json=as_json, everything=everything)


def opened(name: str) -> tuple[Tokenizer, Blueprint | None]:
    """A model's tokenizer, and its blueprint where there is a model that is known."""
    from glassformer.checkpoint import open_at
    from glassformer.checkpoint.locate import locate
    from glassformer.opening import Opened
    from glassformer.text import Tokenizer

    common.listen()
    with common.progress_bar() as progress:
        path = locate(name, "tokenizer", progress)
    if path.suffix == ".tiktoken":
        return Tokenizer.from_tiktoken(path), None
    found = Opened(name, open_at(path))
    if path.is_dir() and not (path / "config.json").exists():  # a tokenizer by itself
        return found.tokenizer, None
    try:
        return found.tokenizer, found.blueprint()
    except ConfigError as error:
        common.note(f"glass: {error}")
        return found.tokenizer, None
