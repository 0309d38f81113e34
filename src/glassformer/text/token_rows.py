"""Encoded texts as rows: how each is cut to a limit, or into windows of it, and how a batch is padded to one length.

A row never copies the library's encoding. It knows which tokens of a text are left, and how many padding tokens stand
before and after them; everything else is read through that on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import tokenizers

from glassformer.ground.errors import InputError

Padding: TypeAlias = bool | Literal["longest", "max_length", "do_not_pad"]
Truncation: TypeAlias = bool | Literal["longest_first", "only_first", "only_second", "do_not_truncate"] | None

TRUNCATIONS = (True, False, None, "longest_first", "only_first", "only_second", "do_not_truncate")
NO_TRUNCATION = (False, None, "do_not_truncate")
Span: TypeAlias = tuple[int, int]


class TokenRow:
    """One row of a batch, with the names that the library gives such things."""

    __slots__ = ("padding_after", "padding_before", "padding_token", "positions", "source")

    def __init__(self, source: tokenizers.Encoding, positions: list[int] | None = None) -> None:
        self.source = source
        self.positions = positions  # of its tokens in the source; None for all of them
        self.padding_before = self.padding_after = 0  # how many padding tokens stand around it
        self.padding_token: tuple[int, str] = (0, "")  # the padding token: its id and its spelling

    def pad(self, width: int, padding_token: tuple[int, str], side: str) -> None:
        """Fill up to `width` tokens; a longer row stays as it is."""
        missing = max(0, width - len(self))
        self.padding_before, self.padding_after = (missing, 0) if side == "left" else (0, missing)
        self.padding_token = padding_token

    def __len__(self) -> int:
        tokens = len(self.source) if self.positions is None else len(self.positions)
        return self.padding_before + tokens + self.padding_after

    def _read(self, values: list[Any], padding: Any) -> list[Any]:
        if self.positions is not None:
            values = [values[position] for position in self.positions]
        if self.padding_before or self.padding_after:
            return [padding] * self.padding_before + values + [padding] * self.padding_after
        return values

    @property
    def ids(self) -> list[int]:
        return self._read(self.source.ids, self.padding_token[0])

    @property
    def type_ids(self) -> list[int]:
        return self._read(self.source.type_ids, 0)

    @property
    def tokens(self) -> list[str]:
        return self._read(self.source.tokens, self.padding_token[1])

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return self._read(self.source.offsets, (0, 0))

    @property
    def attention_mask(self) -> list[int]:
        tokens = len(self) - self.padding_before - self.padding_after
        return [0] * self.padding_before + [1] * tokens + [0] * self.padding_after

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
        positions = [position for position, pair in enumerate(both) if pair == (word, sequence)]
        return (positions[0], positions[-1] + 1) if positions else None

    def word_to_chars(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        span = self.word_to_tokens(word, sequence)
        return (self.offsets[span[0]][0], self.offsets[span[1] - 1][1]) if span else None

    def char_to_token(self, char: int, sequence: int = 0) -> int | None:
        both = zip(self.offsets, self.sequence_ids, strict=True)
        return next(
            (position for position, ((first, last), whose) in enumerate(both) if whose == sequence and first <= char < last),
            None,
        )

    def char_to_word(self, char: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(char, sequence)
        return None if token is None else self.word_ids[token]


def truncate(
    source: tokenizers.Encoding,
    limit: int,
    strategy: Any,
    side: str,
    stride: int = 0,
    windows: bool = False,
    has_special_tokens: bool = True,
) -> list[TokenRow]:
    """Rows of at most `limit` tokens: the first one, or a window for every part of the texts.

    The texts are cut, and never the special tokens around them while they have room. Neighbouring windows share
    `stride` tokens. Where both texts are cut, each window of the one meets each of the other, in the library's order.
    `has_special_tokens=False` saves looking for them.
    """
    size = len(source)
    if size <= limit:
        return [TokenRow(source)]
    owners: list[int | None] = []
    starts, lengths = [0, size], [size, 0]
    if has_special_tokens or source.n_sequences > 1:
        owners = source.sequence_ids  # the first text (0), the second (1), or neither (None); each text is one run
        starts = [owners.index(owner) if owner in owners else size for owner in (0, 1)]
        lengths = [owners.count(owner) for owner in (0, 1)]
    special = size - sum(lengths)
    lengths_kept = _lengths_kept(lengths[0], lengths[1], limit - special, strategy)
    if limit < special:
        return [TokenRow(source, [position for position, owner in enumerate(owners) if owner is None][:limit])]
    first, second = (_window_spans(length, room, stride, side) for length, room in zip(lengths, lengths_kept, strict=True))
    window_spans = [(first[0], second[0])]
    if windows:
        window_spans += [(first_span, second_span) for first_span in first[1:] for second_span in second]
        window_spans += [(first[0], second_span) for second_span in second[1:]]
    return [TokenRow(source, _positions_kept(size, starts, lengths, spans)) for spans in window_spans]


def _positions_kept(size: int, starts: Sequence[int], lengths: Sequence[int], spans: tuple[Span, Span]) -> list[int]:
    """The tokens that are left when each text is cut to its span."""
    positions, position = [], 0
    for start, length, (first, last) in sorted(zip(starts, lengths, spans, strict=True)):
        positions += [*range(position, start), *range(start + first, start + last)]
        position = start + length
    return [*positions, *range(position, size)]


def _lengths_kept(first: int, second: int, room: int, strategy: Any) -> tuple[int, int]:
    """How many tokens of each text are kept."""
    if room <= 0:
        return 0, 0
    if strategy in ("only_first", "only_second"):
        cut, uncut = (first, second) if strategy == "only_first" else (second, first)
        if room - uncut < 1:
            raise InputError(
                f"truncation={strategy!r} cannot bring {first + second} tokens to {room} by cutting {cut}. "
                "Use truncation=True, which may cut both texts."
            )
        return (room - second, second) if strategy == "only_first" else (first, room - first)
    # the longer text is cut first; where both must be, they share, and the odd token goes to the longer
    short, long = sorted((first, second))
    if short * 2 < room:
        long = room - short
    else:
        short, long = room // 2, room - room // 2
    return (long, short) if first > second else (short, long)


def _window_spans(length: int, width: int, stride: int, side: str) -> list[Span]:
    """Where the windows of one text begin and end; one that is cut to nothing is whole in the second window."""
    if width >= length:
        return [(0, length)]
    if width == 0:
        return [(0, 0), (0, length)]
    if stride >= width:
        raise InputError(f"stride={stride} leaves no step between windows of {width} tokens. Use a smaller stride.")
    starts = range(0, length - stride, width - stride)
    spans = [(position, min(position + width, length)) for position in starts]
    return [(length - last, length - first) for first, last in spans] if side == "left" else spans
