"""`glass tokens`: a text as a model's tokens, or several as a padded batch. Only the tokenizer and the config are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import argument, option
from glassformer.cli.options import OutputGroup
from glassformer.cli.text_input import read_joined_text, read_text
from glassformer.ground.errors import ConfigError, InputError, SettingError

if TYPE_CHECKING:
    from glassformer.blueprints import Blueprint
    from glassformer.text import Tokenizer

EXAMPLE = (
    'Example: glass tokens "how are you?"   ·   glass tokens "how are you?" "Hi!" --left   ·   '
    'glass tokens -m minilm "a question" --pair "an answer" --json'
)


def tokens(
    texts: Annotated[
        list[str] | None,
        argument(
            metavar="TEXT",
            help="The text, or several as a batch; what is piped in follows a single one. '-': stdin alone.",
            default_shown=False,
        ),
    ] = None,
    model: common.ModelOption = common.DEFAULT_MODEL,
    pair: Annotated[str | None, option("--pair", help="A second text, for models that read pairs.")] = None,
    lines: Annotated[bool, option("--lines", help="Each line of stdin is a text of the batch.")] = False,
    left: Annotated[
        bool | None,
        option("--left/--right", help="The side on which a batch is padded.", default_shown="the tokenizer's"),
    ] = None,
    special: Annotated[
        bool, option("--special/--no-special", help="Add the special tokens that the model was trained with.")
    ] = True,
    *,
    output: OutputGroup,
) -> None:
    """Show the tokens of a text: id, piece, text and offsets of each; or several texts as a padded batch."""
    from glassformer.see.tokens import batch, tokenized
    from glassformer.see.view import View

    batch_texts = read_texts(texts or [], lines)
    several = lines or len(batch_texts) > 1
    if several and pair is not None:
        raise SettingError("--pair goes with one text, not with several. Leave it out, or give one text.")
    if not several and left is not None:
        raise SettingError(
            f"--{'left' if left else 'right'} says where a batch is padded. Give several texts, or leave it out."
        )
    if not several and not batch_texts[0]:  # blanks are tokens too
        raise InputError("the text is empty. Give at least one character.")
    tokenizer, blueprint = open_tokenizer(model)
    view: View
    if several:
        side = None if left is None else "left" if left else "right"
        view = batch(tokenizer, batch_texts, side=side, special=special, name=model, blueprint=blueprint)
    else:
        view = tokenized(tokenizer, batch_texts[0], pair, special=special, name=model, blueprint=blueprint)
    output.show(view)


def read_texts(texts: Sequence[str], lines: bool) -> list[str]:
    """The arguments; or stdin, as one text, as the end of the only one, or one per non-empty line."""
    if not lines and len(texts) < 2:
        return [read_joined_text(texts[0] if texts else None, "TEXT")]
    if not lines:
        return [read_text(text, "TEXT") for text in texts]
    if texts and list(texts) != ["-"]:
        raise SettingError("--lines reads the texts from stdin. Leave it out, or the texts.")
    return [line for line in read_text("-", "TEXT").splitlines() if line]


def open_tokenizer(name: str) -> tuple[Tokenizer, Blueprint | None]:
    """A model's tokenizer; and its blueprint, if there is a model of a known family."""
    from glassformer.model_files import locate_finished, open_base
    from glassformer.text import Tokenizer

    common.log_to_stderr()
    with bars.download_bar() as progress:
        path = locate_finished(name, "tokenizer", progress)
        if path.suffix == ".tiktoken":
            return Tokenizer.from_tiktoken(path), None
        opened, _ = open_base(name, "tokenizer", progress)
    if path.is_dir() and not (path / "config.json").exists():  # a tokenizer by itself, or with an adapter
        return opened.tokenizer, None
    try:
        return opened.tokenizer, opened.blueprint()
    except ConfigError as error:
        common.note(f"glass: {error}")
        return opened.tokenizer, None
