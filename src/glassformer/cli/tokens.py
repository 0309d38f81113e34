"""`glass tokens`: a text as a model's tokens, or several as a padded batch. Only the tokenizer and the config are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from glassformer.cli import bars, common
from glassformer.cli.command import OptionGroup
from glassformer.cli.text_input import read_joined_text, read_text
from glassformer.ground.errors import ConfigError, InputError, SettingError
from glassformer.ground.operations import about, operation
from glassformer.see.tokens import Batch, TokenizedText, batch, model_tokens, tokenized

if TYPE_CHECKING:
    from glassformer.blueprints import Blueprint
    from glassformer.text import Tokenizer


@dataclass(frozen=True)
class TokenizerGroup(OptionGroup):
    """Whose tokenizer."""

    HEADING = "Model"

    model: common.ModelOption = common.DEFAULT_MODEL


@operation(
    example='glass tokens "how are you?"   ·   glass tokens "how are you?" "Hi!" --left   ·   '
    'glass tokens -m minilm "a question" --pair "an answer" --json',
    settings_of=model_tokens,
)
def tokens(
    model_options: TokenizerGroup,
    texts: Annotated[
        Sequence[str] | None,
        about(
            "The text, or several as a batch; what is piped in follows a single one. '-': stdin alone.",
            positional=True,
            metavar="TEXT",
            default_shown=False,
        ),
    ] = None,
    lines: Annotated[bool, about("Each line of stdin is a text of the batch.")] = False,
    left: Annotated[
        bool | None, about("The side on which a batch is padded.", "--left/--right", default_shown="the tokenizer's")
    ] = None,
    pair: str | None = None,
    special: bool = True,
) -> TokenizedText | Batch:
    """Show the tokens of a text: id, piece, text and offsets of each; or several texts as a padded batch."""
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
    model = model_options.model
    tokenizer, blueprint = open_tokenizer(model)
    if several:
        side = None if left is None else "left" if left else "right"
        return batch(tokenizer, batch_texts, side=side, special=special, name=model, blueprint=blueprint)
    return tokenized(tokenizer, batch_texts[0], pair, special=special, name=model, blueprint=blueprint)


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
