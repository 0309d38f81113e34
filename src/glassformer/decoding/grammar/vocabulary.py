"""All tokens of a tokenizer by the bytes that they stand for in a text, as a grammar's walk needs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from glassformer.decoding.grammar.library import build_tokenizer
from glassformer.decoding.shortlist import Ids
from glassformer.ground.errors import SettingError

if TYPE_CHECKING:
    from llguidance import LLTokenizer


class GrammarTokenizer(Protocol):
    """What is needed of a tokenizer: the bytes of each id, and how ids read one after another."""

    def __len__(self) -> int: ...

    @property
    def all_special_ids(self) -> list[int]: ...

    def get_added_vocab(self) -> dict[str, int]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def decode(self, ids: Any, skip_special_tokens: bool = ..., clean_up_tokenization_spaces: bool | None = ...) -> Any: ...


class GrammarVocabulary(NamedTuple):
    """All tokens as llguidance sees them: a row of slots, the model's ids first.

    SentencePiece's decoders drop the space that a text begins with, so that `▁yes` reads `yes` at the start and ` yes`
    further on. There each token with a space has a second slot, for the start alone; where nothing is left of it, that
    is the silent one.
    """

    ll_tokenizer: LLTokenizer
    size: int
    slots: int
    ends: Ids  # the ids that end a text
    special: frozenset[int]  # the ids that are no text
    opening: Ids | None  # the slot of each id at the start of a text; None where it is the id itself

    @property
    def silent(self) -> int:
        return self.size

    @property
    def end(self) -> int:
        """The slot that stands for every id that ends a text."""
        return self.size + 1


MAX_TOKEN_BYTES = 1000  # bytes of a token; llguidance cannot hold longer ones, and they are never allowed
MARK = b"\xff"  # what it marks special tokens with; no text has this byte
_CACHE: WeakKeyDictionary[GrammarTokenizer, dict[tuple[object, ...], GrammarVocabulary]] = WeakKeyDictionary()


def vocabulary_of(tokenizer: GrammarTokenizer, size: int | None, eos: frozenset[int]) -> GrammarVocabulary:
    """Made once for each tokenizer, because it takes up to a second."""
    key = (size, eos, len(tokenizer), *tokenizer.all_special_ids)
    cached = _CACHE.setdefault(tokenizer, {})
    if key not in cached:
        id_count = 1 + max(
            len(tokenizer) - 1, *tokenizer.get_added_vocab().values(), -1
        )  # there may be holes before the last
        cached[key] = _read(tokenizer, id_count if size is None else size, eos)
    return cached[key]


def _read(tokenizer: GrammarTokenizer, size: int, eos: frozenset[int]) -> GrammarVocabulary:
    read = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    token_bytes = [tokenizer.token_bytes(token) for token in range(size)]
    token_bytes = [raw if len(raw) <= MAX_TOKEN_BYTES and MARK not in raw else b"" for raw in token_bytes]
    special_ids = {*tokenizer.all_special_ids, *eos}
    letter = next((token for token, raw in enumerate(token_bytes) if raw.isalpha() and token not in special_ids), None)
    if letter is None:
        raise SettingError("this tokenizer has no letters, so no grammar can guide it. Use a model with another.")

    def after_letter(tokens: Iterable[int]) -> Iterator[tuple[int, str]]:
        """How each of these reads after a letter."""
        rows = [[letter], *([letter, token] for token in tokens)]
        alone, *texts = read(rows)
        return ((row[-1], text.removeprefix(alone)) for row, text in zip(rows[1:], texts, strict=True))

    added = (token for token in tokenizer.get_added_vocab().values() if token < size)
    hidden = (token for token, text in after_letter(added) if not text)
    special = frozenset(token for token in (*special_ids, *hidden) if 0 <= token < size)
    text_tokens = [token for token, raw in enumerate(token_bytes) if raw and token not in special]
    samples = (
        token for token in text_tokens if len(token_bytes[token]) < 3 or token % 997 == 0
    )  # all short ones, and some others
    for token, text in after_letter(samples):
        if text.encode() != token_bytes[token] and _is_whole(token_bytes[token]):
            raise SettingError(
                f"no grammar can guide this tokenizer: it decodes token {token} to {text!r}, where {token_bytes[token]!r} "
                "was expected. Use a model with a byte-level or SentencePiece tokenizer."
            )
    opening: Ids | None = None
    opening_bytes: list[bytes] = []
    spaced = [token for token in text_tokens if b" " in token_bytes[token]]
    sample = next((token for token in spaced if token_bytes[token][:1] == b" " and token_bytes[token][1:].isalpha()), letter)
    if read([sample]).encode() != token_bytes[sample]:
        opening = np.arange(size)
        for token, text in zip(spaced, read([[token] for token in spaced]), strict=True):
            opening[token] = size + 2 + len(opening_bytes) if text else size
            opening_bytes += [text.encode()] if text else []
    ll_tokenizer = build_tokenizer([*token_bytes, b"", b"", *opening_bytes], special, end=size + 1)
    ends = np.array([token for token in sorted(eos) if 0 <= token < size], np.int64)
    return GrammarVocabulary(ll_tokenizer, size, size + 2 + len(opening_bytes), ends, special, opening)


def _is_whole(raw: bytes) -> bool:
    """Whether these bytes are whole characters."""
    return "\N{REPLACEMENT CHARACTER}" not in raw.decode(errors="replace")
