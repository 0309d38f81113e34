"""`glass tokens`: a text as its model's tokens, or several as a padded batch. Only the tokenizer and the config are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from glassformer.cli import common
from glassformer.cli.options import SHOWING, Showing, bundled
from glassformer.errors import ConfigError, InputError, SettingError

if TYPE_CHECKING:
    from glassformer.blueprints import Blueprint
    from glassformer.text import Tokenizer

EXAMPLE = (
    'Example: glass tokens "how are you?"   ·   glass tokens "how are you?" "Hi!" --left   ·   '
    'glass tokens -m minilm "a question" --pair "an answer" --json'
)


@bundled
def tokens(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text, or several for a batch; '-' or nothing reads one from stdin.",
            show_default=False,
        ),
    ] = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    pair: Annotated[str | None, typer.Option("--pair", help="A second text, as some models take two.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of stdin is a text of a batch.")] = False,
    left: Annotated[
        bool | None,
        typer.Option("--left/--right", help="Where a batch's shorter texts are filled up.", show_default="the tokenizer's"),
    ] = None,
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="With the tokens around a text that the model was trained with.")
    ] = True,
    shown: Showing = SHOWING,
) -> None:
    """Show the tokens of a text: ids, spelling, what each stands for, where it stands; or of several, as a padded batch."""
    from glassformer.observe.tokens import batch, tokenized
    from glassformer.views.view import View

    given = read(texts or [], lines)
    several = lines or len(given) > 1
    if several and pair is not None:
        raise SettingError("--pair is a second text beside one, not beside several. Leave it out, or give one text.")
    if not several and left is not None:
        raise SettingError(
            f"--{'left' if left else 'right'} says where a batch is filled up. Give several texts, or leave it out."
        )
    if not several and not given[0]:  # blanks are tokens too
        raise InputError("the text is empty. Give at least one character.")
    tokenizer, blueprint = opened(model)
    found: View
    if several:
        side = None if left is None else "left" if left else "right"
        found = batch(tokenizer, given, side=side, special=special, name=model, blueprint=blueprint)
    else:
        found = tokenized(tokenizer, given[0], pair, special=special, name=model, blueprint=blueprint)
    shown.show(found)


def read(texts: Sequence[str], lines: bool) -> list[str]:
    """The texts that were given, or what stdin holds: one text, or one on each line that is not empty."""
    if not lines:
        return [common.read_text(text, "TEXT") for text in texts or (None,)]
    if texts and list(texts) != ["-"]:
        raise SettingError("--lines reads the texts from stdin. Leave it out, or the texts.")
    return [line for line in common.read_text("-", "TEXT").splitlines() if line]


def opened(name: str) -> tuple[Tokenizer, Blueprint | None]:
    """A model's tokenizer, and its blueprint where there is a model that is known."""
    from glassformer.checkpoint import open_at
    from glassformer.checkpoint.locate import locate
    from glassformer.opened import Opened
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
