"""What an executor is: it runs ragged rows of tokens, and owns what it remembers of them.

A row is one sequence. Rows of different lengths, prompts and single tokens can run in one pass; there is no padding
on this side. Drivers (the loop, beams, a scheduler, a tree) say what to feed; executors say what the scores are.
Needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from glassformer.candidates import Candidates
from glassformer.sites import Watch

CACHES = ("f32", "f16", "bf16", "q8")  # what an engine may be asked to keep keys and values in
ACTIVATIONS = ("q14", "q8")  # what it may be asked to round the inputs of packed matrices to


class Row(Protocol):
    """A sequence inside an executor."""

    @property
    def length(self) -> int:
        """How many tokens are remembered."""


class Want(Enum):
    """Which positions of a feed are to be scored."""

    NONE = "none"  # an inner chunk of a long prompt
    LAST = "last"
    ALL = "all"  # verification, log-probabilities of a prompt


@dataclass(frozen=True, slots=True)
class Feed:
    """What one row is fed in one pass."""

    row: Row
    ids: Sequence[int]
    want: Want = Want.LAST
    parents: Sequence[int] | None = None  # a tree: for each token the number of the one before it; -1: the row so far
    watch: Watch | None = None


class Scores(Protocol):
    """The scores of one feed's wanted positions; valid until the executor's next run."""

    @property
    def sites(self) -> Mapping[str, Any]:
        """What the feed's watch read."""

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        """One position's scores for the whole vocabulary."""

    def top(self, k: int, index: int = -1) -> Candidates:
        """One position's best candidates, found where the scores are."""


@dataclass(frozen=True, slots=True)
class Description:
    """What an executor is, in words and numbers, for people."""

    name: str
    device: str
    dtype: str
    threads: int
    remembers: int = 0  # bytes, of each token; 0 where it is not known before the first one
    notes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)  # what was asked for otherwise than it would have been


class Executor(Protocol):
    @property
    def context(self) -> int:
        """How many tokens a row can hold."""

    def open(self, source: Sequence[int] | None = None) -> Row:
        """A new, empty row; `source` is an encoder's input."""

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        """One pass over all these feeds."""

    def fork(self, row: Row, length: int | None = None) -> Row:
        """A new row with the same memory, or with the first part of it."""

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        """Row i takes over the memory of row parents[i], all at once: beams."""

    def rewind(self, row: Row, length: int) -> int:
        """Forget what came after so many tokens; the length that was kept."""

    def close(self, row: Row) -> None:
        """Give a row's memory back."""

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """What the scores would be if a stream left the last block like this: the last norm and the head alone.

        States (rows, hidden) to scores (rows, vocabulary).
        """

    def describe(self) -> Description:
        """What this executor is, what it could not use and why."""


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with alike: what one knows, the other need not read.

    >>> alike([1, 2, 3], [1, 2, 4, 5])
    2
    """
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
