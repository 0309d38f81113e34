"""A text cut into its tokens: what each is, where it stands in the text, and which word it belongs to; or several texts, as
the padded batch that a model takes. No model is run."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.blueprints import Blueprint
from glassformer.ground.errors import InputError
from glassformer.observe.vocabulary import vocabulary as vocabulary_sizes
from glassformer.text import BatchEncoding, Tokenizer
from glassformer.text.detokenizer import shown_bytes
from glassformer.views.batch import Batch
from glassformer.views.tokens import TextToken, Token, TokenizedText


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as it reads; half a character as its bytes."""
    return shown_bytes(tokenizer.token_bytes(token))


def describe_tokens(tokenizer: Tokenizer, ids: Sequence[int], first: int = 0) -> tuple[Token, ...]:
    """Ids as tokens for people; `first`: the position of the first."""
    special = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    return tuple(
        Token(position, number, tokenizer.convert_ids_to_tokens(number), token_text(tokenizer, number), number in special)
        for position, number in enumerate(ids, first)
    )


def tokenized(
    tokenizer: Tokenizer,
    text: str,
    pair: str | None = None,
    *,
    special: bool = True,
    name: str = "",
    blueprint: Blueprint | None = None,
) -> TokenizedText:
    """The tokens of a text; `special` puts those around it that the model was trained with."""
    encoding = tokenizer(text, pair, add_special_tokens=special, return_offsets_mapping=True)
    return TokenizedText(name, text, pair or None, _text_tokens(tokenizer, encoding), vocabulary_sizes(tokenizer, blueprint))


def _text_tokens(tokenizer: Tokenizer, encoding: BatchEncoding, row: int = 0) -> tuple[TextToken, ...]:
    """The tokens of one row of a tokenizer's output."""
    added = tokenizer.backend.get_added_tokens_decoder()
    special = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
    encoded = encoding[row]
    rows = zip(encoded.ids, encoded.offsets, encoded.word_ids, encoded.sequence_ids, strict=True)
    return tuple(
        TextToken(
            position,
            number,
            tokenizer.convert_ids_to_tokens(number),
            shown_bytes(raw := tokenizer.token_bytes(number)),
            number in special,
            None if owner is None else start,
            None if owner is None else end,
            word,
            number in added,
            owner == 1,
            raw.hex(" "),
        )
        for position, (number, (start, end), word, owner) in enumerate(rows)
    )


def batch(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    side: str | None = None,
    special: bool = True,
    name: str = "",
    blueprint: Blueprint | None = None,
) -> Batch:
    """Several texts as one batch; `side`: where the shorter ones are padded, by default as the tokenizer has it.

    A tokenizer without a padding token borrows the one that ends a text: the attention mask hides it.
    """
    side = tokenizer.padding_side if side is None else side
    if side not in ("left", "right"):
        raise InputError(f"side={side!r} is not known. Use 'left' or 'right'.")
    if not texts:
        raise InputError("a batch has at least one text.")
    if (empty := next((number for number, text in enumerate(texts, 1) if not text), None)) is not None:
        raise InputError(f"text {empty} is empty. Give at least one character.")
    encoding = tokenizer(list(texts), add_special_tokens=special, return_offsets_mapping=True)
    width = max(map(len, encoding["input_ids"]))
    borrowed = tokenizer.pad_token is None
    token = tokenizer.eos_token if borrowed else tokenizer.pad_token
    if token is None and any(len(row) < width for row in encoding["input_ids"]):
        raise InputError(
            "this tokenizer has no token for padding, and none that ends a text and could stand in. Give one text at a time."
        )
    number = None if token is None else tokenizer.convert_tokens_to_ids(token)

    def padded(rows: Sequence[Sequence[int]], filler: int) -> tuple[tuple[int, ...], ...]:
        paddings = ((filler,) * (width - len(row)) for row in rows)
        pairs = zip(rows, paddings, strict=True)
        return tuple((*row, *padding) if side == "right" else (*padding, *row) for row, padding in pairs)

    types = encoding.get("token_type_ids")
    set_pad_token = "tokenizer.pad_token = tokenizer.eos_token\n" if borrowed else ""
    arguments = "" if special else ", add_special_tokens=False"
    arguments += "" if side == tokenizer.padding_side else f', padding_side="{side}"'
    return Batch(
        model=name,
        texts=tuple(texts),
        ids=padded(encoding["input_ids"], number or 0),
        attention_mask=padded([[1] * len(row) for row in encoding["input_ids"]], 0),
        token_type_ids=None if types is None else padded(types, 0),
        tokens=tuple(_text_tokens(tokenizer, encoding, row) for row in range(len(texts))),
        padding_side="left" if side == "left" else "right",
        pad_token=token,
        pad_token_id=number,
        borrowed=borrowed and token is not None,
        python=f'{set_pad_token}tokenizer(texts{arguments}, padding=True, return_tensors="pt")',
        vocabulary=vocabulary_sizes(tokenizer, blueprint),
    )
