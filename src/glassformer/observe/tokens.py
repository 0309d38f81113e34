"""A text cut into its tokens: what each is, where it stands in the text, and which word it belongs to. No model is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glassformer.blueprints import Blueprint
from glassformer.observe.seen import Seen
from glassformer.observe.vocabulary import Vocabulary
from glassformer.text import Tokenizer
from glassformer.text.pieces import shown_bytes

if TYPE_CHECKING:
    from glassformer.show.page import Page


@dataclass(frozen=True)
class Token:
    """One token of a prompt."""

    position: int
    id: int
    token: str  # as the vocabulary spells it
    text: str  # as it reads; half a character as its bytes
    special: bool  # a sign to the model


@dataclass(frozen=True)
class Piece(Token):
    """One token of a text, and its place there."""

    start: int | None  # where it begins in its text, in characters; None for a token put around the text
    end: int | None
    word: int | None  # the number of its word
    added: bool  # put into the vocabulary after it was trained
    second: bool = False  # of the second text of two


@dataclass(frozen=True)
class Cut(Seen):
    """A text, or two, as tokens."""

    SCHEMA = "glassformer.tokens/1"

    model: str
    text: str
    pair: str | None
    tokens: tuple[Piece, ...]
    vocabulary: Vocabulary

    def page(self, everything: bool = False) -> Page:
        from glassformer.show.tokens import page

        return page(self, everything)


def cut(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    *,
    special: bool = True,
    name: str = "",
    blueprint: Blueprint | None = None,
) -> Cut:
    """The tokens of a text; `special` puts those around it that the model was trained with."""
    found = tokenizer(text, pair, add_special_tokens=special, return_offsets_mapping=True)
    added = tokenizer.backend.get_added_tokens_decoder()
    signs = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
    rows = zip(found["input_ids"], found["offset_mapping"], found.word_ids(), found.sequence_ids(), strict=True)
    pieces = tuple(
        Piece(
            position,
            number,
            tokenizer.convert_ids_to_tokens(number),
            shown_bytes(tokenizer.token_bytes(number)),
            number in signs,
            None if owner is None else start,
            None if owner is None else end,
            word,
            number in added,
            owner == 1,
        )
        for position, (number, (start, end), word, owner) in enumerate(rows)
    )
    return Cut(name, text, pair or None, pieces, Vocabulary.of(tokenizer, blueprint))
