"""How the persistent kernel's stream holds weights: bfloat16, or the codes and scales of GGUF's packed kinds.

A format is a list of sections: for some neighbouring columns of a row, some words of 32 bits. Codes come first. Those
of packed kinds are unsigned, with `zero` for zero, and in blocks of 64 columns, in the order in which the four lanes that
read a row need them: see stream.py. Of codes of six bits, the upper two lie in another section. Then come words of
scales: one for 64 columns, in some formats a second one with minimums, and for the K kinds what those are multiplied with,
a word for 256 columns. No number changes, only its place.

All layers of a matrix have one format. Where their kinds differ, as in files that keep some matrices of some layers in more
bits, it is one that can hold them all.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import NamedTuple

WARPS = 8
EMBEDDINGS = {  # bits of a code, the code of zero, and what scales are: as in packed_matmul.py
    "BF16": (16, 0, 0), "Q8_0": (8, 0, 0), "Q4_0": (4, 8, 0), "Q4_1": (4, 0, 1), "Q4_K": (4, 0, 2), "Q5_K": (5, 0, 2),
    "Q6_K": (6, 32, 3),
}  # fmt: skip
BLOCK = 64  # columns of a word of scales


class FormatNumber(IntEnum):
    """As kernel.cu counts them."""

    BFLOAT16 = 0
    BITS_8 = 1
    BITS_4 = 2
    BITS_4_AND_MINIMUMS = 3
    K_BITS_4_AND_MINIMUMS = 4
    K_BITS_6 = 5
    K_BITS_6_AND_MINIMUMS = 6


class Section(NamedTuple):
    """The words that hold some neighbouring columns of a row."""

    columns: int
    words: int


class Format(NamedTuple):
    number: FormatNumber
    sections: tuple[Section, ...]
    kinds: frozenset[str]  # of matrices that it can hold
    zero: int  # the code of zero

    @property
    def is_packed(self) -> bool:
        return self.number is not FormatNumber.BFLOAT16

    @property
    def tile_rows(self) -> int:
        """Rows that tensor cores multiply at a time."""
        return 16 if self.is_packed else 8

    @property
    def unit(self) -> int:
        """Columns are padded to a multiple, so that every warp has whole blocks."""
        return WARPS * self.sections[0].columns

    def row_words(self, columns: int) -> int:
        """Words of some columns of a row."""
        return sum(columns // section.columns * section.words for section in self.sections)


def format_of(kinds: Collection[str]) -> Format | None:
    """The smallest format that can hold matrices of all these kinds, if one can."""
    return next((form for form in FORMATS if form.kinds.issuperset(kinds)), None)


def _format(number: FormatNumber, kinds: str, *sections: tuple[int, int], zero: int = 0) -> Format:
    return Format(number, tuple(Section(*section) for section in sections), frozenset(kinds.split()), zero)


BFLOAT16 = _format(FormatNumber.BFLOAT16, "BF16", (32, 16))
FORMATS = (
    BFLOAT16,
    _format(FormatNumber.BITS_8, "Q8_0", (64, 16), (64, 1), zero=128),
    _format(FormatNumber.BITS_4, "Q4_0", (64, 8), (64, 1), zero=8),
    _format(FormatNumber.BITS_4_AND_MINIMUMS, "Q4_1", (64, 8), (64, 2)),
    _format(FormatNumber.K_BITS_4_AND_MINIMUMS, "Q4_K", (64, 8), (64, 1), (256, 1)),
    _format(FormatNumber.K_BITS_6, "Q6_K", (64, 8), (64, 4), (64, 1), (256, 1), zero=32),
    _format(FormatNumber.K_BITS_6_AND_MINIMUMS, "Q4_K Q5_K Q6_K", (64, 8), (64, 4), (64, 2), (256, 1), zero=32),
)
