"""What an executor is: it runs ragged rows of tokens, and owns their KV cache.

A row is one sequence. Rows of different lengths, prefill and decode can run in one pass; drivers never pad. Drivers (the
loop, beams, a scheduler, a tree) decide what to feed; executors compute the scores. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress, count
from operator import ne
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from glassformer.ground.candidates import Candidates
from glassformer.ground.sites import Watch

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


class BlockInput(NamedTuple):
    """What enters a block: the residual stream of some tokens, (tokens, hidden)."""

    block: int
    states: Any


@dataclass(frozen=True, slots=True)
class Feed:
    """The tokens that one row is fed in one pass.

    One with a `begin` computes tokens again: the row has read them, they are its last ones, and what it holds of the blocks
    before stays. Only executors that say so (`begins_at_blocks`) take it. If such a pass fails, the row is to be closed.
    """

    row: Row
    ids: Sequence[int]
    want: Want = Want.LAST
    parents: Sequence[int] | None = None  # a token tree: the number of each token's parent; -1: the row so far
    watch: Watch | None = None
    vectors: Any = None  # in place of the ids' embeddings, (tokens, hidden); only the plain executor takes them
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

    @property
    def option_texts(self) -> list[str]:
        return option_texts(self.options)


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


@dataclass(frozen=True, slots=True)
class Choice:
    """How an executor chooses a row's next tokens by itself: the best ones, or drawn after these rules, in this order."""

    sampled: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    candidates: int = 0  # so many of the best are recorded with each token, and what each rule left; 0: nothing
    sites: frozenset[str] = frozenset()  # that are read in each pass


BEST = Choice()


@dataclass(frozen=True, slots=True)
class ChoiceRecords:
    """What is known of a row's choices, by step.

    Shapes: (steps), but for stages (steps, 5): the model's scores, then what temperature, top_k, top_p and min_p left;
    and candidates (steps, at least as many as the choice asks for), where -1 stands for none.
    """

    shares: npt.NDArray[np.float64]  # the probability of the chosen token among what it was drawn from
    best: npt.NDArray[np.float64]  # the model's highest score
    chosen: npt.NDArray[np.float64]  # the chosen token's
    in_play: npt.NDArray[np.float64]  # how many candidates are left
    totals: npt.NDArray[np.float64]  # the sums of exp(score − best)
    weighted: npt.NDArray[np.float64]  # the sums of exp(score − best) · (score − best)
    ids: npt.NDArray[np.int64]  # the best candidates after temperature, by score and then by id
    scores: npt.NDArray[np.float32]  # the model's own, of these


@dataclass(frozen=True, slots=True)
class ChosenTokens:
    """Tokens that an executor chose for a row."""

    ids: Sequence[int]  # NOT_CHOSEN from the first that it could not choose
    records: ChoiceRecords | None = None  # where the choice samples or has candidates
    sites: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)  # as a pass over all of them would give them
    scores: npt.NDArray[np.float32] | None = None  # in place of records: the model's, (steps, vocabulary)


class AheadDecoder(Protocol):
    """What an executor may offer beside: to choose tokens itself, many times, so that no step waits for a driver."""

    def knows(self, choice: Choice) -> bool:
        """Whether it can choose so."""

    def __call__(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> Sequence[ChosenTokens]:
        """Feed each row its token and then, again and again, the one that it chose: as many as there are draws for each.

        Draws are (rows, tokens), numbers in [0, 1), whether a row is sampled or not. All chosen tokens but the last are in
        the row's cache then. NOT_CHOSEN stands for each from the first whose scores are not all numbers, or among which it
        cannot choose: there a driver runs the pass and chooses.
        """

    @property
    def enqueue(self) -> Enqueue | None:
        """The same without waiting for the tokens, if it can: see `Enqueue`."""


NOT_CHOSEN = -1


class Enqueue(Protocol):
    """Queues what an `AheadDecoder` does. Calling what it returns, once, waits for the tokens.

    The rows have their new lengths at once. Until their tokens have been waited for, more steps of them can be queued, other
    rows can run, and any can be rewound and closed.
    """

    def __call__(
        self, rows: Sequence[Row], tokens: Sequence[int | None], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> Callable[[], Sequence[ChosenTokens]]:
        """A row without a token goes on from the one that was chosen last for it, whether it is known yet or not."""


@dataclass(frozen=True)
class AheadFunctions:
    """An `AheadDecoder` made of functions."""

    knows: Callable[[Choice], bool]
    decode: Callable[
        [Sequence[Row], Sequence[int], Sequence[Choice], npt.NDArray[np.float64]], Sequence[ChosenTokens]
    ]  # fmt: skip
    enqueue: Enqueue | None = None

    def __call__(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> Sequence[ChosenTokens]:
        return self.decode(rows, tokens, choices, draws)


class GreedyDecoder(Protocol):
    """The same for an executor that knows no more than to take the best token."""

    def __call__(self, rows: Sequence[Row], tokens: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        """Feed each row its token and then, `count - 1` times, the best token that followed: the best ids, (rows, count).

        All but the last of them are in the row's cache then. NOT_NUMBERS stands for each from the first whose scores are not
        all numbers.
        """


NOT_NUMBERS = NOT_CHOSEN
MAX_AHEAD = 32  # tokens that an executor chooses at once: what comes after a text's end is computed for nothing


@dataclass(frozen=True)
class BestAhead:
    """An `AheadDecoder` that takes the best tokens."""

    decode: GreedyDecoder
    enqueue: None = None

    def knows(self, choice: Choice) -> bool:
        return choice == BEST

    def __call__(
        self, rows: Sequence[Row], tokens: Sequence[int], choices: Sequence[Choice], draws: npt.NDArray[np.float64]
    ) -> list[ChosenTokens]:
        return [ChosenTokens(ids) for ids in self.decode(rows, tokens, draws.shape[1]).tolist()]


def ahead_decoder(executor: Executor) -> AheadDecoder | None:
    """An executor's `decode_ahead`, or its `decode_greedily`, if it has either."""
    if hasattr(executor, "decode_ahead"):
        decoder: AheadDecoder | None = executor.decode_ahead
        return decoder
    greedy: GreedyDecoder | None = getattr(executor, "decode_greedily", None)
    return None if greedy is None else BestAhead(greedy)


class PrefixCaching(Protocol):
    """What an executor may offer beside: to begin a row with what was read before."""

    def open(self, source: Sequence[int] | None = None, salt: Hashable = None) -> Row:
        """A new row, which shares its beginning with rows of the same salt alone."""

    def cached_length(self, ids: Sequence[int], salt: Hashable = None) -> int:
        """How many tokens of a prompt need not be computed again; its last one must be, for the scores after it."""

    def reuse_prefix(self, row: Row, ids: Sequence[int]) -> int:
        """Let an empty row begin with what is cached of a prompt: the number of tokens that it holds then."""


def prefix_caching(executor: Executor) -> PrefixCaching | None:
    """An executor's prefix cache, if it has one."""
    caching: PrefixCaching | None = getattr(executor, "prefix_caching", None)
    return caching


def open_row(executor: Executor, source: Sequence[int] | None, salt: Hashable) -> Row:
    """A new row, whose beginning only rows of the same salt share."""
    caching = prefix_caching(executor)
    return executor.open(source) if caching is None else caching.open(source, salt)


class RowMemories(Protocol):
    """What an executor may offer beside: to tell what a row remembers, so that others can go on from there."""

    def remember(self, row: Row, length: int) -> Any:
        """The keys and values of a row's first so many tokens, in a form of the executor's own."""


def row_memories(executor: Executor) -> RowMemories | None:
    """An executor that can tell what its rows remember."""
    memories: Any = executor if hasattr(executor, "remember") else None
    return memories  # type: ignore[no-any-return]


def least_prompt(executor: Executor) -> int:
    """Feeds of at least so many tokens are computed as prompts, shorter ones as steps: they differ in the last bits."""
    least: int = getattr(executor, "least_prompt", 1)
    return least


def first_block(feed: Feed) -> int:
    """The first block that a feed computes."""
    return 0 if feed.begin is None else feed.begin.block


def begins_at_blocks(executor: Executor) -> bool:
    """Whether an executor takes feeds that begin at a later block."""
    able: bool = getattr(executor, "begins_at_blocks", False)
    return able


def same_frequencies(executor: Executor, length: int) -> int:
    """How many tokens may follow so many until RoPE has other frequencies: a longer draft would change the scores of what
    stands before it."""
    room: int | None = getattr(executor, "same_frequencies", lambda length: None)(length)
    return executor.context if room is None else room


def max_ahead(executor: Executor) -> int:
    """How many tokens a driver may let an executor choose at once."""
    most: int = getattr(executor, "max_ahead", MAX_AHEAD)
    return most


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """The length of two sequences' common prefix.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next(compress(count(), map(ne, first, second)), min(len(first), len(second)))
