"""What an executor is: it runs ragged rows of tokens, and owns their KV cache.

A row is one sequence. Rows of different lengths, prefill and decode can run in one pass; drivers never pad. Drivers (the
loop, beams, a scheduler, a tree) decide what to feed; executors compute the logits. Needs no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress, count
from operator import ne
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.candidates import Candidates
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch

CACHES = ("f32", "f16", "bf16", "q8")  # dtypes that an engine may store keys and values in
GPU_CACHES = CACHES[:3]  # those that the GPU engine has
ACTIVATIONS = ("q14", "mixed", "q8")  # what an engine may round the inputs of packed matrices to
Draws: TypeAlias = npt.NDArray[np.float64]  # numbers in [0, 1) that tokens are drawn with


class Row(Protocol):
    """A sequence inside an executor."""

    @property
    def length(self) -> int:
        """How many tokens are in its cache."""


class Source(tuple[int, ...]):
    """The ids that an encoder reads, of which some stand for global tokens: all others see them, and they see all.

    >>> Source((7, 8, 9), global_tokens=[0]) == Source((7, 8, 9))
    False
    """

    global_tokens: frozenset[int] = frozenset()  # their places
    global_range: tuple[int, int] = (0, 0)  # from the first of them to the end of the last one
    mask: npt.NDArray[np.uint8] | None = None  # 1 for them, 0 for all others; None: there are none

    def __new__(cls, ids: Iterable[int], global_tokens: Iterable[int] = ()) -> Self:
        source = super().__new__(cls, ids)
        source.global_tokens = frozenset(global_tokens)
        if source.global_tokens:
            if not source.global_tokens <= frozenset(range(len(source))):
                raise InputError(f"a source of {len(source)} tokens has global tokens at {sorted(source.global_tokens)}.")
            source.global_range = min(source.global_tokens), max(source.global_tokens) + 1
            source.mask = np.array([place in source.global_tokens for place in range(len(source))], np.uint8)
        return source

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.global_tokens == getattr(other, "global_tokens", frozenset())

    def __hash__(self) -> int:
        return super().__hash__()

    @classmethod
    def of(cls, ids: Iterable[int]) -> Self:
        """The same, or ids of which none stands for a global token."""
        return ids if isinstance(ids, cls) else cls(ids)

    @classmethod
    def by_default(cls, ids: Iterable[int]) -> Self:
        """The same, or ids of which the first stands for a global token, as it did when such models learned to summarize."""
        return ids if isinstance(ids, cls) else cls(ids, (0,))


NO_SOURCE = Source(())


class Want(Enum):
    """Which positions of a feed are to be scored."""

    NONE = "none"  # an inner chunk of a long prompt
    LAST = "last"
    ALL = "all"  # verification, log-probabilities of a prompt


class BlockInput(NamedTuple):
    """What enters a block: the residual stream of some tokens, (tokens, hidden)."""

    block: int
    states: Any


@dataclass(frozen=True, slots=True)
class Feed:
    """The tokens that one row is fed in one pass.

    One with a `begin` computes tokens again: the row has read them, they are its last ones, and what it holds of the blocks
    before stays. It takes the capability `begins_at_blocks`. If such a pass fails, the row is to be closed.
    """

    row: Row
    ids: Sequence[int]
    want: Want = Want.LAST
    parents: Sequence[int] | None = None  # a token tree: the index of each token's parent; -1: the row so far
    watch: Watch | None = None
    vectors: Any = None  # in place of the ids' embeddings, (tokens, hidden); needs `takes_vectors`
    begin: BlockInput | None = None  # the first block that is computed, and what enters it; None: all are
    text_length: int = 0  # of a prompt that is fed in chunks: all its tokens, on which RoPE's frequencies may depend


def read_length(feed: Feed, start: int) -> int:
    """How many tokens the text has that a feed is read as part of, if its first token stands at `start`.

    >>> read_length(Feed(None, (7, 8, 9), parents=(-1, 0, 0)), 10)
    12
    """
    if feed.parents is None:
        return max(start + len(feed.ids), feed.text_length)
    depths: list[int] = []
    for parent in feed.parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return max(start + max(depths), feed.text_length)


class Logits(Protocol):
    """The model's logits of one feed's positions, before any rule; valid until the executor's next run."""

    @property
    def sites(self) -> Mapping[str, Any]:
        """The values that the feed's watch reads, by site."""

    def host(self, index: int = -1) -> npt.NDArray[np.float32]:
        """One position's logits for the whole vocabulary."""

    def top(self, k: int, index: int = -1) -> Candidates:
        """One position's best candidates, computed on the logits' device."""


@dataclass(frozen=True, slots=True)
class Description:
    """What an executor is, in words and numbers, for people."""

    name: str
    device: str
    dtype: str
    threads: int
    cache_bytes_per_token: int = 0  # 0 where it is not known before the first token
    cache_bytes_per_row: int = 0  # at most, beside its tokens': of the states that layers keep, and of their snapshots
    notes: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)  # settings that differ from their defaults

    @property
    def option_texts(self) -> list[str]:
        return option_texts(self.options)

    @property
    def tokens_per_row(self) -> int:
        """How many tokens take as much of the cache as what a row has beside its tokens."""
        return -(-self.cache_bytes_per_row // max(self.cache_bytes_per_token, 1))


def option_texts(options: Mapping[str, str]) -> list[str]:
    """An executor's options in words.

    >>> option_texts({"cache": "f16", "tensor_parallel": "2"})
    ['cache in f16', 'split among 2 processes']
    """
    words = {"batch_invariant": "not batch-invariant", "tensor_parallel": "split among {} processes"}
    return [words.get(name, f"{name} in {{}}").format(kind) for name, kind in options.items()]


class Executor(Protocol):
    @property
    def context(self) -> int:
        """How many tokens a row can hold."""

    @property
    def capabilities(self) -> Capabilities:
        """What it offers beyond these methods."""

    def open(self, source: Sequence[int] | None = None) -> Row:
        """A new, empty row; `source` is an encoder's input, with its global tokens if it is a `Source`."""

    def run(self, feeds: Sequence[Feed]) -> Sequence[Logits]:
        """One pass over all these feeds."""

    def fork(self, row: Row, length: int | None = None) -> Row:
        """A new row with the same cache, or with its first tokens."""

    def select(self, rows: Sequence[Row], parents: Sequence[int]) -> None:
        """Row i takes over the cache of row parents[i], all at once: beams."""

    def rewind(self, row: Row, length: int) -> int:
        """Drop what comes after the first `length` tokens; returns the new length."""

    def close(self, row: Row) -> None:
        """Release a row's cache."""

    def unembed(self, states: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The logits for states that leave the last block: the last norm and the head alone.

        States (rows, hidden) to logits (rows, vocabulary).
        """

    def describe(self) -> Description:
        """What this executor is, for people and receipts."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How an executor chooses a row's next tokens by itself: the best ones, or drawn after these rules, in this order."""

    sampled: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    candidates: int = 0  # how many of the best are recorded with each token, and what each rule left; 0: nothing
    sites: frozenset[str] = frozenset()  # that are read in each pass


BEST = Choice()


@dataclass(frozen=True, slots=True)
class ChoiceRecords:
    """What is known of a row's choices, by step.

    Shapes: (steps), but for stages (steps, 5): the logits, then what temperature, top_k, top_p and min_p left;
    and candidates (steps, at least as many as the choice asks for), where -1 stands for none.
    """

    shares: npt.NDArray[np.float64]  # the probability of the chosen token among what it was drawn from
    best: npt.NDArray[np.float64]  # the highest logit
    chosen: npt.NDArray[np.float64]  # the chosen token's
    in_play: npt.NDArray[np.float64]  # how many candidates are left
    totals: npt.NDArray[np.float64]  # the sums of exp(logit − best)
    weighted: npt.NDArray[np.float64]  # the sums of exp(logit − best) · (logit − best)
    ids: npt.NDArray[np.int64]  # the best candidates after temperature, by logit and then by id
    logits: npt.NDArray[np.float32]  # of these


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """Tokens that an executor chose for a row."""

    ids: Sequence[int]  # NOT_CHOSEN from the first that it could not choose
    records: ChoiceRecords | None = None  # where the choice samples or has candidates
    sites: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)  # as a pass over all of them would give them
    logits: npt.NDArray[np.float32] | None = None  # in place of records: (steps, vocabulary)


NOT_CHOSEN = -1  # in place of a token: a driver runs the pass and chooses
MAX_AHEAD = 32  # tokens that an executor chooses at once: what comes after a text's end is computed for nothing


class Decode(Protocol):
    """Chooses the next tokens of some rows."""

    def __call__(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: Draws
    ) -> Sequence[ChosenTokens]:
        """Feed each row its token and then, again and again, the one that was chosen: as many as there are draws for each.

        Draws are (rows, tokens), numbers in [0, 1), whether a row is sampled or not. All chosen tokens but the last are in
        the row's cache then. NOT_CHOSEN stands for each from the first whose logits are not all numbers, or among which no
        token can be chosen.
        """


class Enqueue(Protocol):
    """Queues what `Decode` does. Calling what it returns, once, waits for the tokens.

    The rows have their new lengths at once. Until their tokens have been waited for, more steps of them can be queued, other
    rows can run, and any can be rewound and closed.
    """

    def __call__(
        self, rows: Sequence[Row], tokens: Sequence[int | None], choices: Sequence[Choice], draws: Draws
    ) -> Callable[[], Sequence[ChosenTokens]]:
        """A row without a token goes on from the one that was chosen last for it, whether it is known yet or not."""


@dataclass(frozen=True, slots=True)
class DeviceSampler:
    """Chooses tokens where the logits are, step after step, so that none of them waits for a driver."""

    knows: Callable[[Choice], bool]  # whether it can choose like this
    decode: Decode
    enqueue: Enqueue | None = None  # the same without waiting for the tokens
    max_tokens: int = MAX_AHEAD  # of a row, that a driver lets it choose at once

    def best(self, rows: Sequence[Row], tokens: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        """The best tokens alone: (rows, count)."""
        chosen = self.decode(rows, tokens, [BEST] * len(rows), np.zeros((len(rows), count)))
        return np.array([text.ids for text in chosen], np.int32).reshape(len(rows), count)


class PrefixCaching(Protocol):
    """Begins rows with what was read before."""

    def open(self, source: Sequence[int] | None = None, salt: Hashable = None) -> Row:
        """A new row, which shares its beginning with rows of the same salt alone."""

    def cached_length(self, ids: Sequence[int], salt: Hashable = None) -> int:
        """How many tokens of a prompt need not be computed again; its last one must be, for the logits after it."""

    def reuse_prefix(self, row: Row, ids: Sequence[int]) -> int:
        """Let an empty row begin with what is cached of a prompt: the number of tokens that it holds then."""


def _unlimited(length: int) -> int:
    return sys.maxsize


def _anywhere(row: Row, length: int) -> int:
    return length


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an executor offers beyond the protocol. It is the same for all of its life; wrappers map it."""

    takes_vectors: bool = False  # feeds with `vectors`
    begins_at_blocks: bool = False  # feeds with a `begin`
    calls_modules: bool = False  # watches of PyTorch's modules, by their own names
    min_prefill_tokens: int = 1  # longer feeds are computed as prompts, shorter ones as steps, with other last bits
    sampler: DeviceSampler | None = None
    prefix_cache: PrefixCaching | None = None
    export_kv: Callable[[Row, int], Any] | None = None  # the keys and values of a row's first tokens, in a form of its own
    same_frequencies: Callable[[int], int] = _unlimited
    """How many tokens can follow a text of this length before RoPE has other frequencies: a longer draft would change the
    logits of what stands before it."""
    resumes_at: Callable[[Row, int], int] = _anywhere
    """The most of a row's first tokens, up to so many, that a fork can go on from without reading any of them again."""


NO_EXTRAS = Capabilities()  # of an executor that has the protocol's methods alone


def open_row(executor: Executor, source: Sequence[int] | None, salt: Hashable) -> Row:
    """A new row, whose beginning only rows of the same salt share."""
    cache = executor.capabilities.prefix_cache
    return executor.open(source) if cache is None else cache.open(source, salt)


def first_block(feed: Feed) -> int:
    """The first block that a feed computes."""
    return 0 if feed.begin is None else feed.begin.block


def copied(value: Any) -> Any:
    """An array, of whatever library, that stays as it is in the executor's next pass."""
    return value.clone() if hasattr(value, "clone") else value.copy()


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of two sequences' common prefix.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next(compress(count(), map(ne, first, second)), min(len(first), len(second)))
