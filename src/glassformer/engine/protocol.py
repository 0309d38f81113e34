"""What an executor is: it runs ragged rows of tokens, and owns their KV cache.

A row is one sequence. Rows of different lengths, prefill and decode can run in one pass; drivers never pad. Drivers (the
loop, beams, a scheduler, a tree) decide what to feed; executors compute the scores. Needs no torch.
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

CACHES = ("f32", "f16", "bf16", "q8")  # dtypes that an engine may store keys and values in
GPU_CACHES = CACHES[:3]  # those that the GPU engine has
ACTIVATIONS = ("q14", "mixed", "q8")  # what an engine may round the inputs of packed matrices to


class Row(Protocol):
    """A sequence inside an executor."""

    @property
    def length(self) -> int:
        """How many tokens are in its cache."""


class Want(Enum):
    """Which positions of a feed are to be scored."""

    NONE = "none"  # an inner chunk of a long prompt
    LAST = "last"
    ALL = "all"  # verification, log-probabilities of a prompt


@dataclass(frozen=True, slots=True)
class Feed:
    """The tokens that one row is fed in one pass."""

    row: Row
    ids: Sequence[int]
    want: Want = Want.LAST
    parents: Sequence[int] | None = None  # a token tree: the number of each token's parent; -1: the row so far
    watch: Watch | None = None


class Scores(Protocol):
    """The scores of one feed's positions; valid until the executor's next run."""

    @property
    def sites(self) -> Mapping[str, Any]:
        """The values that the feed's watch reads, by site."""

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        """One position's scores for the whole vocabulary."""

    def top(self, k: int, index: int = -1) -> Candidates:
        """One position's best candidates, computed on the scores' device."""


@dataclass(frozen=True, slots=True)
class Description:
    """What an executor is, in words and numbers, for people."""

    name: str
    device: str
    dtype: str
    threads: int
    cache_bytes_per_token: int = 0  # 0 where it is not known before the first token
    notes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)  # settings that differ from their defaults


class Executor(Protocol):
    @property
    def context(self) -> int:
        """How many tokens a row can hold."""

    def open(self, source: Sequence[int] | None = None) -> Row:
        """A new, empty row; `source` is an encoder's input."""

    def run(self, feeds: Sequence[Feed]) -> Sequence[Scores]:
        """One pass over all these feeds."""

    def fork(self, row: Row, length: int | None = None) -> Row:
        """A new row with the same cache, or with its first tokens."""

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        """Row i takes over the cache of row parents[i], all at once: beams."""

    def rewind(self, row: Row, length: int) -> int:
        """Drop what comes after so many tokens; returns the new length."""

    def close(self, row: Row) -> None:
        """Release a row's cache."""

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The scores for states that leave the last block: the last norm and the head alone.

        States (rows, hidden) to scores (rows, vocabulary).
        """

    def describe(self) -> Description:
        """What this executor is, for people and receipts."""


class GreedyDecoder(Protocol):
    """What an executor may offer beside: to choose the best token itself, many times, so that no step waits for a driver."""

    def __call__(self, rows: Sequence[Row], tokens: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        """Feed each row its token and then, `count - 1` times, the best token that followed: the best ids, (rows, count).

        All but the last of them are in the row's cache then. NOT_NUMBERS stands for each from the first whose scores are not
        all numbers.
        """


NOT_NUMBERS = -1


def greedy_decoder(executor: Executor) -> GreedyDecoder | None:
    """An executor's `decode_greedily`, if it has it."""
    decoder: GreedyDecoder | None = getattr(executor, "decode_greedily", None)
    return decoder


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of two sequences' common prefix.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
