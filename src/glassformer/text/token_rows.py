"""Encoded texts as rows: how each is cut to a limit, or into windows of it, and how a batch is filled up to one length.

A row never copies what the library found. It knows which tokens of a text were kept, and how many padding tokens stand
before and after them; everything else is read through that when somebody asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tokenizers

from glassformer.errors import InputError

Padding: TypeAlias = bool | Literal["longest", "max_length", "do_not_pad"]
Truncation: TypeAlias = bool | Literal["longest_first", "only_first", "only_second", "do_not_truncate"] | None

TRUNCATIONS = (True, False, None, "longest_first", "only_first", "only_second", "do_not_truncate")
NO_TRUNCATION = (False, None, "do_not_truncate")
Span: TypeAlias = tuple[int, int]


class TokenRow:
    """One row of a batch, with the names that the library gives such things."""

    __slots__ = ("after", "before", "filler", "kept", "source")

    def __init__(self, source: tokenizers.Encoding, kept: list[int] | None = None) -> None:
        self.source = source
        self.kept = kept  # the places of its tokens in the source; None for all of them
        self.before = self.after = 0  # how many padding tokens stand around it
        self.filler: tuple[int, str] = (0, "")  # the padding token: its id and its spelling

    def pad(self, width: int, filler: tuple[int, str], side: str) -> None:
        """Fill up to `width` tokens; a longer row stays as it is."""
        missing = max(0, width - len(self))
        self.before, self.after = (missing, 0) if side == "left" else (0, missing)
        self.filler = filler

    def __len__(self) -> int:
        return self.before + (len(self.source) if self.kept is None else len(self.kept)) + self.after

    def _read(self, found: list[Any], filling: Any) -> list[Any]:
        if self.kept is not None:
            found = [found[at] for at in self.kept]
        return [filling] * self.before + found + [filling] * self.after if self.before or self.after else found

    @property
    def ids(self) -> list[int]:
        return self._read(self.source.ids, self.filler[0])

    @property
    def type_ids(self) -> list[int]:
        return self._read(self.source.type_ids, 0)

    @property
    def tokens(self) -> list[str]:
        return self._read(self.source.tokens, self.filler[1])

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return self._read(self.source.offsets, (0, 0))

    @property
    def attention_mask(self) -> list[int]:
        return [0] * self.before + [1] * (len(self) - self.before - self.after) + [0] * self.after

    @property
    def special_tokens_mask(self) -> list[int]:
        return self._read(self.source.special_tokens_mask, 1)

    @property
    def word_ids(self) -> list[int | None]:
        return self._read(self.source.word_ids, None)

    @property
    def sequence_ids(self) -> list[int | None]:
        return self._read(self.source.sequence_ids, None)

    @property
    def n_sequences(self) -> int:
        return self.source.n_sequences

    # Which token, word or characters belong to which; None where nothing does ----------------------------------

    def token_to_sequence(self, token: int) -> int | None:
        return self.sequence_ids[token]

    def token_to_word(self, token: int) -> int | None:
        return self.word_ids[token]

    def token_to_chars(self, token: int) -> tuple[int, int] | None:
        return None if self.sequence_ids[token] is None else self.offsets[token]

    def word_to_tokens(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        both = zip(self.word_ids, self.sequence_ids, strict=True)
        found = [at for at, pair in enumerate(both) if pair == (word, sequence)]
        return (found[0], found[-1] + 1) if found else None

    def word_to_chars(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        span = self.word_to_tokens(word, sequence)
        return (self.offsets[span[0]][0], self.offsets[span[1] - 1][1]) if span else None

    def char_to_token(self, char: int, sequence: int = 0) -> int | None:
        both = zip(self.offsets, self.sequence_ids, strict=True)
        return next(
            (at for at, ((first, last), whose) in enumerate(both) if whose == sequence and first <= char < last), None
        )

    def char_to_word(self, char: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(char, sequence)
        return None if token is None else self.word_ids[token]


def truncate(
    source: tokenizers.Encoding,
    limit: int,
    way: Any,
    side: str,
    stride: int = 0,
    windows: bool = False,
    framed: bool = True,
) -> list[TokenRow]:
    """Rows of at most `limit` tokens: the first one, or a window for every part of the texts.

    It is the texts that are cut, and never the tokens around them while they have room. Neighbouring windows share
    `stride` tokens. Where both texts are cut, each window of the one meets each of the other, in the library's order.
    `framed=False` says that there are no tokens around a text, which saves looking for them.
    """
    size = len(source)
    if size <= limit:
        return [TokenRow(source)]
    owners: list[int | None] = []
    places, lengths = [0, size], [size, 0]
    if framed or source.n_sequences > 1:
        owners = source.sequence_ids  # the first text (0), the second (1), or neither (None); each text is one run
        places = [owners.index(owner) if owner in owners else size for owner in (0, 1)]
        lengths = [owners.count(owner) for owner in (0, 1)]
    around = size - sum(lengths)
    kept = _room(lengths[0], lengths[1], limit - around, way)
    if limit < around:
        return [TokenRow(source, [at for at, owner in enumerate(owners) if owner is None][:limit])]
    first, second = (_spans(length, room, stride, side) for length, room in zip(lengths, kept, strict=True))
    chosen = [(first[0], second[0])]
    if windows:
        chosen += [(one, two) for one in first[1:] for two in second]
        chosen += [(first[0], two) for two in second[1:]]
    return [TokenRow(source, _places(size, places, lengths, spans)) for spans in chosen]


def _places(size: int, places: Sequence[int], lengths: Sequence[int], spans: tuple[Span, Span]) -> list[int]:
    """The tokens that are left when each text is cut to its span."""
    found, at = [], 0
    for place, length, (first, last) in sorted(zip(places, lengths, spans, strict=True)):
        found += [*range(at, place), *range(place + first, place + last)]
        at = place + length
    return [*found, *range(at, size)]


def _room(first: int, second: int, room: int, way: Any) -> tuple[int, int]:
    """How many tokens of each text are kept."""
    if room <= 0:
        return 0, 0
    if way in ("only_first", "only_second"):
        mine, other = (first, second) if way == "only_first" else (second, first)
        if room - other < 1:
            raise InputError(
                f"truncation={way!r} cannot bring {first + second} tokens to {room} by cutting {mine}. "
                "Use truncation=True, which may cut both texts."
            )
        return (room - second, second) if way == "only_first" else (first, room - first)
    # the longer text gives way first; where both must, they share, and the odd token goes to the longer
    short, long = sorted((first, second))
    if short * 2 < room:
        long = room - short
    else:
        short, long = room // 2, room - room // 2
    return (long, short) if first > second else (short, long)


def _spans(length: int, kept: int, stride: int, side: str) -> list[Span]:
    """Where the windows of one text begin and end; one that is cut to nothing is whole in the second window."""
    if kept >= length:
        return [(0, length)]
    if kept == 0:
        return [(0, 0), (0, length)]
    if stride >= kept:
        raise InputError(f"stride={stride} leaves no step between windows of {kept} tokens. Use a smaller stride.")
    starts = range(0, length - stride, kept - stride)
    spans = [(at, min(at + kept, length)) for at in starts]
    return [(length - last, length - first) for first, last in spans] if side == "left" else spans
