"""Tokens: what each is, where it stands in the text, and which word it belongs to; and padded batches of several texts.

In a batch the texts stand below each other, and under each the mask says what is text. No model is run. Three sizes are all
called "vocabulary size":

    trained ─ tokens added later, such as <|im_start|> ▶ listed ─ padding that stands for no text ▶ scored

Qwen3 has 151,643, then 151,669, then 151,936. In many models two of them, or all three, are the same. A tokenizer knows the
first two; the third is the model's: one score for each id, and as many rows in the table that turns ids into vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from glassformer.blueprints import Blueprint
from glassformer.ground.arguments import checked, checked_class
from glassformer.ground.candidates import Candidates
from glassformer.ground.errors import InputError, did_you_mean
from glassformer.ground.operations import about, operation
from glassformer.page.document import Column, Page, Paragraph, Style, Table, TableRow
from glassformer.page.format import format_percent, pluralize, reveal_line, visible
from glassformer.see.protocols import ModelLike
from glassformer.see.view import View, flat_data
from glassformer.text import BatchEncoding, Tokenizer
from glassformer.text.streaming import shown_bytes

MAX_TOKENS = 96  # of a long text, unless everything is shown


def find_token(token: int | str, texts: Sequence[str]) -> int:
    """A token's position, by number or by its text."""
    if isinstance(token, str) and token.lstrip("-").isdecimal():
        token = int(token)
    if isinstance(token, int):
        if not -len(texts) <= token < len(texts):
            raise InputError(f"there is no token {token} in a text of {len(texts)}.")
        return token % len(texts)
    positions = [index for index, text in enumerate(texts) if text.strip() == token.strip("␣ ")]
    if not positions:
        raise InputError(f"no token matches {token!r}.{did_you_mean(token, [text.strip() for text in texts])}")
    return positions[-1]


@dataclass(frozen=True)
class Token:
    """One token of a prompt."""

    position: int
    id: int
    token: str  # as in the vocabulary
    text: str  # as it reads; half a character as its bytes
    special: bool  # a control token, such as <|im_end|>


@dataclass(frozen=True)
class Candidate:
    """A token, a label or a passage."""

    id: int  # of the token or the label; of a passage, the position of its first token
    text: str
    score: float
    probability: float  # NaN where there is only a score
    last: int | None = None  # of a passage: the position of its last token


@dataclass(frozen=True)
class TextToken(Token):
    """One token of a text, and its place there."""

    start: int | None  # in characters of its text; None for a token added around it
    end: int | None
    word: int | None  # the number of its word
    added: bool  # to the vocabulary after its training
    second: bool = False  # of the second text of two
    bytes: str = ""  # of the text that it adds, in hexadecimal


@checked_class
@dataclass(frozen=True)
class VocabularySizes:
    """How many tokens were trained, how many the tokenizer lists, how many ids the model embeds and scores."""

    trained: int  # tokenizer.vocab_size
    listed: int  # len(tokenizer): with the tokens that were added
    embedded: int | None = None  # rows of the embedding table; None without a model
    scored: int | None = None  # None: the model scores no tokens
    beyond: int = 0  # listed tokens without a row in the embedding table

    @property
    def unused(self) -> int:
        """Ids that the model embeds and that stand for no text."""
        return 0 if self.embedded is None else max(0, self.embedded - (self.listed - self.beyond))

    def summary(self) -> str:
        """The sizes in one line.

        >>> VocabularySizes(151_643, 151_669, 151_936, 151_936).summary()
        'trained 151,643 · with added tokens 151,669 · scores 151,936'
        """
        last = "" if self.embedded is None else f" · embedded {self.embedded:,}"
        if self.scored is not None:
            last = f" · scores {self.scored:,}"
        return f"trained {self.trained:,} · with added tokens {self.listed:,}{last}"

    def why(self) -> str:
        """Why they differ, in a sentence; empty where they do not.

        >>> VocabularySizes(32_000, 32_100, 32_128, 32_128).why()
        '28 ids stand for no text: the scores are padded to a size that hardware likes.'
        """
        if self.beyond:
            return f"The model's table ends before {self.beyond:,} of the tokens: it can neither read nor write those."
        if self.unused:
            what = "table is" if self.scored is None else "scores are"
            return f"{self.unused:,} ids stand for no text: the {what} padded to a size that hardware likes."
        return ""

    def __str__(self) -> str:
        return f"{self.summary()}\n{self.why()}".rstrip()


SCORING = ("causal", "seq2seq", "masked")  # heads that score tokens


def vocabulary(tokenizer: Tokenizer, blueprint: Blueprint | None = None) -> VocabularySizes:
    """Of a tokenizer, and of the model that it belongs to."""
    trained, listed = tokenizer.vocab_size, len(tokenizer)
    if blueprint is None:
        return VocabularySizes(trained, listed)
    rows = blueprint.token_table.shape[0]
    scored = blueprint.ops[-1].shape[-1] if blueprint.head in SCORING else None
    assert scored is None or isinstance(scored, int)
    added = sum(token_id >= max(rows, trained) for token_id in tokenizer.get_added_vocab().values())
    return VocabularySizes(trained, listed, rows, scored, max(0, trained - rows) + added)


@dataclass(frozen=True)
class TokenizedText(View):
    """A text, or two, as tokens."""

    SCHEMA = "glassformer.tokens/1"

    model: str
    text: str
    pair: str | None
    tokens: tuple[TextToken, ...]
    vocabulary: VocabularySizes

    def page(self, everything: bool = False) -> Page:
        pair = any(token.second for token in self.tokens)
        table = Table.of(
            self.tokens,
            (Column("", "number"), lambda token: str(token.position)),
            (Column("id", "number"), lambda token: str(token.id)),
            (Column("token", "token", min_width=6), lambda token: reveal_line(token.token)),
            (Column("text", "token", min_width=6), lambda token: visible(token.text)),
            (Column("characters", "number"), lambda token: _span(token, pair)),
            (Column("word", "number"), lambda token: _kind(token) or ("" if token.word is None else str(token.word))),
            (Column("bytes", priority=2), lambda token: token.bytes),
            style=lambda token: "special" if _kind(token) else "",
            limit=None if everything else MAX_TOKENS,
        )
        count, characters = pluralize(len(self.tokens), "token"), len(self.text) + len(self.pair or "")
        total = Paragraph(f"\n{count} of {pluralize(characters, 'character')}")
        return Page(f"{self.model}: {count}", (table, total, Paragraph(f"vocabulary: {self.vocabulary}", "dim")))


def _span(token: TextToken, pair: bool) -> str:
    """Its characters; with which of the two texts they are in, if there is a `pair`."""
    which = ("2: " if token.second else "1: ") if pair else ""
    return "" if token.start is None else f"{which}{token.start}–{token.end}"


def _kind(token: TextToken) -> str:
    return "special" if token.special else "added" if token.added else ""


MAX_POSITIONS = 10  # of each text, unless everything is shown
MAX_TEXTS = 12
BAND = 8  # positions of one table where everything is shown
PADDING = "·"
BatchLine: TypeAlias = tuple[str, Sequence[str], Style]  # label, cells, style


@dataclass(frozen=True)
class Batch(View):
    """Several texts as a model takes them at once: padded to one length, with a mask that says what is text."""

    SCHEMA = "glassformer.batch/1"

    model: str
    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]  # (texts, longest)
    attention_mask: tuple[tuple[int, ...], ...]  # 1: a token, 0: padding
    token_type_ids: tuple[tuple[int, ...], ...] | None  # which of two texts each token is of; None: not used by the model
    tokens: tuple[tuple[TextToken, ...], ...]  # without the padding
    padding_side: Literal["left", "right"]
    pad_token: str | None  # None: none is needed, and the tokenizer has none
    pad_token_id: int | None
    borrowed: bool  # the tokenizer has no padding token, so its end-of-text token stands in
    python: str  # the call that gives the same
    vocabulary: VocabularySizes

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ids), len(self.ids[0])

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each token of each text."""
        return [{"row": index, **flat_data(token)} for index, tokens in enumerate(self.tokens) for token in tokens]

    def page(self, everything: bool = False) -> Page:
        texts, width = self.shape
        padding = sum(row.count(0) for row in self.attention_mask)
        pad_token = "" if self.pad_token is None else f" with {visible(self.pad_token)} (id {self.pad_token_id})"
        padded = f"padded on the {self.padding_side}{pad_token}" if padding else "all of one length"
        summary = [
            f"{pluralize(texts, 'text')}, {padded}: ({texts}, {width}), {padding} of {texts * width} places are padding"
        ]
        if padding:
            summary[0] += f" ({format_percent(padding / (texts * width))}, shown as {PADDING})"
        if self.borrowed and padding:
            summary.append("This tokenizer has no padding token; its end-of-text token stands in, and the mask hides it.")
        if not everything and (texts > MAX_TEXTS or width > MAX_POSITIONS):
            summary.append("--all shows what is left out in the middle.")
        return Page(
            f"{self.model}: {pluralize(texts, 'text')} as a batch",
            (
                *tables(self, everything),
                Paragraph("\n" + "\n".join(summary)),
                Paragraph(f"in Python: {self.python}".replace("\n", "\n           ")),
                Paragraph(f"vocabulary: {self.vocabulary}", "dim"),
            ),
        )

    def __repr__(self) -> str:
        return f"Batch({self.shape[0]} texts, padded to {self.shape[1]} tokens)"


def tables(view: Batch, everything: bool) -> Iterator[Table]:
    """One table without the middle of long texts; or, where everything is shown, several below each other."""
    _, width = view.shape
    lines = list(_lines(view, everything))
    if everything and width > BAND:
        for first in range(0, width, BAND):
            shown = list(range(first, min(first + BAND, width)))
            yield _table(lines, shown, [9] * len(shown))
        return
    shown = list(range(width))
    if width > MAX_POSITIONS:
        shown = [*shown[: MAX_POSITIONS // 2], *shown[-MAX_POSITIONS // 2 :]]
    yield _table(
        lines, shown, [8 - min(position, len(shown) - 1 - position) for position in range(len(shown))], width - len(shown)
    )


def _table(lines: Sequence[BatchLine], shown: Sequence[int], priorities: Sequence[int], more: int = 0) -> Table:
    """Some positions, and in the middle how many more there are."""
    columns = [
        Column(str(position), "token", priority=value, min_width=5)
        for position, value in zip(shown, priorities, strict=True)
    ]
    rows = [[label, *(cells[position] if cells else "" for position in shown)] for label, cells, _ in lines]
    if more:
        middle = len(shown) // 2
        columns.insert(middle, Column(f"{more:,} more"))
        for row, (_, cells, _) in zip(rows, lines, strict=True):
            row.insert(1 + middle, "…" if cells else "")
    styled = zip(rows, (style for _, _, style in lines), strict=True)
    return Table((Column("text"), *columns), tuple(TableRow(tuple(row), style) for row, style in styled))


def _lines(view: Batch, everything: bool) -> Iterator[BatchLine]:
    """Of each text its tokens, ids and mask; and token types, where the model takes them."""
    texts, _ = view.shape
    numbers = list(range(texts))
    half = MAX_TEXTS // 2
    for index in numbers if everything or texts <= MAX_TEXTS else [*numbers[:half], None, *numbers[-half:]]:
        if index is None:
            yield f"… {texts - 2 * half:,} more", (), "dim"
            continue
        tokens = iter(view.tokens[index])
        cells = [visible(next(tokens).text) if is_token else PADDING for is_token in view.attention_mask[index]]
        yield str(index + 1), cells, ""
        inputs = {"ids": view.ids, "mask": view.attention_mask, "types": view.token_type_ids}
        for name, rows in inputs.items():
            if rows is not None:
                yield f"  {name}", [str(token_id) for token_id in rows[index]], "dim"


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token as it reads; half a character as its bytes."""
    return shown_bytes(tokenizer.token_bytes(token))


def describe_tokens(tokenizer: Tokenizer, ids: Sequence[int], first: int = 0) -> tuple[Token, ...]:
    """Ids as tokens for people; `first`: the position of the first."""
    special = {*tokenizer.get_added_vocab().values(), *tokenizer.all_special_ids}
    return tuple(
        Token(
            position,
            token_id,
            tokenizer.convert_ids_to_tokens(token_id),
            token_text(tokenizer, token_id),
            token_id in special,
        )
        for position, token_id in enumerate(ids, first)
    )


def candidates(tokenizer: Tokenizer, best: Candidates) -> tuple[Candidate, ...]:
    """Tokens with their texts."""
    return tuple(Candidate(token, token_text(tokenizer, token), score, probability) for token, score, probability in best)


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
    return TokenizedText(name, text, pair or None, _text_tokens(tokenizer, encoding), vocabulary(tokenizer, blueprint))


@operation(name="tokens", route="tokens", passes=False)
def model_tokens(
    model: ModelLike,
    text: Annotated[str, about("The text.", typed=False)],
    pair: Annotated[str | None, about("A second text, for models that read pairs.")] = None,
    *,
    special: Annotated[
        bool, about("Add the special tokens that the model was trained with.", "--special/--no-special")
    ] = True,
) -> TokenizedText:
    """Show the tokens of a text: id, piece, bytes and offsets of each."""
    return tokenized(model.tokenizer, text, pair, special=special, name=model.name, blueprint=model.blueprint)


@operation(name="batch")
def model_batch(
    model: ModelLike, texts: Sequence[str], *, side: Literal["left", "right"] | None = None, special: bool = True
) -> Batch:
    """Several texts as a padded batch, with its attention mask."""
    return batch(model.tokenizer, texts, side=side, special=special, name=model.name, blueprint=model.blueprint)


def _text_tokens(tokenizer: Tokenizer, encoding: BatchEncoding, row: int = 0) -> tuple[TextToken, ...]:
    """The tokens of one row of a tokenizer's output."""
    added = tokenizer.backend.get_added_tokens_decoder()
    special = {*tokenizer.all_special_ids, *(token_id for token_id, token in added.items() if token.special)}
    encoded = encoding[row]
    rows = zip(encoded.ids, encoded.offsets, encoded.word_ids, encoded.sequence_ids, strict=True)
    return tuple(
        TextToken(
            position,
            token_id,
            tokenizer.convert_ids_to_tokens(token_id),
            shown_bytes(raw := tokenizer.token_bytes(token_id)),
            token_id in special,
            None if owner is None else start,
            None if owner is None else end,
            word,
            token_id in added,
            owner == 1,
            raw.hex(" "),
        )
        for position, (token_id, (start, end), word, owner) in enumerate(rows)
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
    if (empty := next((index for index, text in enumerate(texts, 1) if not text), None)) is not None:
        raise InputError(f"text {empty} is empty. Give at least one character.")
    encoding = tokenizer(list(texts), add_special_tokens=special, return_offsets_mapping=True)
    width = max(map(len, encoding["input_ids"]))
    borrowed = tokenizer.pad_token is None
    token = tokenizer.eos_token if borrowed else tokenizer.pad_token
    if token is None and any(len(row) < width for row in encoding["input_ids"]):
        raise InputError(
            "this tokenizer has no token for padding, and none that ends a text and could stand in. Give one text at a time."
        )
    pad_id = None if token is None else tokenizer.convert_tokens_to_ids(token)

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
        ids=padded(encoding["input_ids"], pad_id or 0),
        attention_mask=padded([[1] * len(row) for row in encoding["input_ids"]], 0),
        token_type_ids=None if types is None else padded(types, 0),
        tokens=tuple(_text_tokens(tokenizer, encoding, row) for row in range(len(texts))),
        padding_side="left" if side == "left" else "right",
        pad_token=token,
        pad_token_id=pad_id,
        borrowed=borrowed and token is not None,
        python=f'{set_pad_token}tokenizer(texts{arguments}, padding=True, return_tensors="pt")',
        vocabulary=vocabulary(tokenizer, blueprint),
    )


@operation(name="vocabulary", is_property=True)
def model_vocabulary(model: ModelLike) -> VocabularySizes:
    """How many tokens the tokenizer, the config and the model's head have."""
    return vocabulary(model.tokenizer, model.blueprint)
