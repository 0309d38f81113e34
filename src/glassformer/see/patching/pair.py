"""Two texts side by side: aligned, read once, and the second of them computed again under patches.

Texts of equal length are aligned position by position. Others are aligned by what they have in common; a position without
a counterpart is left out. Nothing before the first difference can differ, nor can anything in the blocks before a patch: so
the text is read once, and every patch begins at its own position and block, with what entered it there. All patches of a
position go through together.

Shapes: states (tokens, hidden); scores (vocabulary).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Generic, TypeAlias, TypeVar

from glassformer.engine.protocol import BlockInput, Executor, Feed, Logits, Want, common_prefix
from glassformer.ground.errors import InputError, spell
from glassformer.ground.sites import ENCODER, Watch
from glassformer.see.activations import Activations, to_numpy
from glassformer.see.passes import encoder_pass
from glassformer.see.tokens import find_token
from glassformer.see.view import Floats

Answers: TypeAlias = tuple[int | str | None, int | str | None]  # the tokens to tell apart; None: what a text leads to


def align(first: Sequence[int], second: Sequence[int]) -> dict[int, int]:
    """Which position of the first text stands for each position of the second.

    Texts of as many tokens are aligned one to one. Otherwise what both have in common is; and of two different spans
    between, the last tokens, as many as both have: a word's last token is where a model has read all of it.

    >>> align([5, 6, 7, 8], [5, 9, 9, 9, 8])
    {0: 0, 2: 1, 3: 2, 4: 3}
    """
    if len(first) == len(second):
        return {position: position for position in range(len(second))}
    aligned: dict[int, int] = {}
    for _, start, end, other_start, other_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        count = min(end - start, other_end - other_start)
        aligned |= zip(range(other_end - count, other_end), range(end - count, end), strict=True)
    return aligned


class TextPair:
    """Two texts, in the stack that reads them: an encoder-decoder's encoder, or the model's only one."""

    def __init__(
        self,
        first: Activations,
        second: Activations,
        positions: Sequence[int | str] | int | None = None,
        *,
        aligned: bool = False,  # whether they may have different numbers of tokens
        aligning: str = "",  # a call that aligns them, for the message where they must not
        answers: Answers = (None, None),
        number: int | None = None,  # of many, from 1 on; None: it is the only one
    ) -> None:
        model = first.model
        if not (model.writes or model.head == "masked"):
            raise InputError(f"{model.name} scores no tokens, so there is no answer that a patch could restore.")
        self.first, self.second, self.answers, self.number = first, second, answers, number
        self.in_encoder = first.source is not None
        if self.in_encoder and first.ids != second.ids:
            raise InputError("the two targets differ. Patch two texts that an encoder reads, before the same target.")
        ids, other_ids = self.ids(first), self.ids(second)
        if len(ids) != len(other_ids) and not aligned:
            other_way = f", or use {spell(aligning)}, which aligns them" if aligning else ""
            raise InputError(
                f"the texts have {len(ids)} and {len(other_ids)} tokens. Patching goes place by place: replace a word by "
                f"one of as many tokens ({spell('model.tokens')} shows them){other_way}."
            )
        if ids == other_ids:
            raise InputError("the two texts are the same, so there is nothing to carry over.")
        self.causal = model.writes and not self.in_encoder
        shared = common_prefix(ids, other_ids) if self.causal else 0  # where nothing can differ
        aligned_positions = align(ids, other_ids).items()
        self.origins = {position: origin for position, origin in aligned_positions if position >= shared}
        if not self.origins:
            raise InputError("one text is the beginning of the other, so no position after it has a counterpart to patch.")
        self.positions = list(self.origins)
        if positions is not None:
            self.positions = self._named_positions(positions, shared)
        self.masks = None if model.writes else self._mask_positions()

    def _named_positions(self, positions: Sequence[int | str] | int, shared: int) -> list[int]:
        named = [positions] if isinstance(positions, (int, str)) else positions
        if not named:
            raise InputError("name at least one position to patch, or leave positions out for all.")
        found = sorted({self._position(position) for position in named})
        if -1 < max(found) < shared:
            raise InputError(f"the texts are the same up to position {shared}, so nothing before it can carry a difference.")
        if not (chosen := [position for position in found if position in self.origins or 0 <= position < shared]):
            raise InputError(f"{named[0]!r} has no counterpart in the other text, so it cannot be patched.")
        self.origins |= {position: position for position in chosen if position < shared}
        return chosen

    @property
    def unaligned(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The positions of each text that have no counterpart in the other."""
        lengths = [len(self.ids(text)) for text in (self.first, self.second)]
        aligned = align(self.ids(self.first), self.ids(self.second))
        return (
            tuple(position for position in range(lengths[0]) if position not in aligned.values()),
            tuple(position for position in range(lengths[1]) if position not in aligned),
        )

    def ids(self, text: Activations) -> tuple[int, ...]:
        return text.source or () if self.in_encoder else text.ids

    @property
    def tokens(self) -> int:
        """How many both texts have."""
        return len(self.ids(self.first)) + len(self.ids(self.second))

    def text(self, text: Activations) -> str:
        return str(text.model.tokenizer.decode(self.ids(text)))

    def token_texts(self, text: Activations) -> tuple[str, ...]:
        return tuple(token.text for token in (text.source_tokens if self.in_encoder else text.tokens))

    @property
    def prefix(self) -> str:
        """What the names of the stack's sites begin with."""
        return ENCODER if self.in_encoder else ""

    def _position(self, position: int | str) -> int:
        """A position, by its index or by a token of either text."""
        with suppress(InputError):
            return find_token(position, self.token_texts(self.second))
        origin = find_token(position, self.token_texts(self.first))
        aligned = align(self.ids(self.first), self.ids(self.second))
        return next((place for place, source in aligned.items() if source == origin), -1)

    def _mask_positions(self) -> tuple[int, int]:
        """Where each text has its mask."""
        tokenizer = self.first.model.tokenizer
        first, second = (
            [index for index, token in enumerate(text.ids) if token == tokenizer.mask_token_id]
            for text in (self.first, self.second)
        )
        if len(first) != 1 or len(second) != 1 or align(self.first.ids, self.second.ids).get(second[0]) != first[0]:
            raise InputError(
                f"{self.first.model.name} fills gaps: put one {tokenizer.mask_token} into both texts, at the same place."
            )
        return first[0], second[0]


LONG_PREFIX = 64  # tokens before the first patch that are worth a pass of their own
BATCH_TOKENS = 2048  # of the patches that go through in one pass, about
MAX_TOKENS = 1_000_000  # that all patches read
Place = TypeVar("Place", bound=Hashable)


@dataclass(frozen=True)
class PatchedRun(Generic[Place]):
    """The second text under a patch: what is changed and read of it, and where that begins."""

    place: Place
    watch: Watch
    start: int  # the first position that is changed
    block: int  # the first block in which anything is changed or read


@dataclass(frozen=True)
class ReadPair:
    """A pair whose texts were read once: the scores after each, the first one's values at some sites, and the second one."""

    pair: TextPair
    scores: tuple[Floats, Floats]
    values: Mapping[str, Floats]
    second: UnpatchedText | None  # None: whatever patches it reads it anew

    def patched(self, runs: Sequence[PatchedRun[Place]]) -> Iterator[tuple[Place, Floats, Mapping[str, Floats]]]:
        """The second text's scores under each patch, and what its watch reads."""
        pair, text = self.pair, self.pair.second
        if pair.masks is not None:
            entries = entry_sites(text)
            values = text.values(*entries.values()) if entries else {}
            entering = {block: BlockInput(block, values[site]) for block, site in entries.items()}
            for run in runs:
                yield run.place, *_mask_scores(text, pair.masks[1], run.watch, entering.get(run.block))
            return
        executor = text.model.executor
        size = max(1, BATCH_TOKENS // len(pair.ids(text)))
        for start in dict.fromkeys(run.start for run in runs):
            here = [run for run in runs if run.start == start]
            for batch in (here[index : index + size] for index in range(0, len(here), size)):
                if self.second is not None:
                    feeds = [self.second.feed(run) for run in batch]
                else:
                    feeds = [Feed(executor.open(text.source), text.ids, watch=run.watch) for run in batch]
                for run, output in zip(batch, _run_rows(executor, feeds), strict=True):
                    yield run.place, *output


class UnpatchedText:
    """A text that was read once, without a patch, and what entered each block: patches begin there."""

    def __init__(self, text: Activations, first: int) -> None:
        """`first`: the first position that any patch changes."""
        self.ids, self.executor, self.first = text.ids, text.model.executor, first
        self.row = self.executor.open(text.source)
        self.read_ahead = first if first >= LONG_PREFIX else 0
        self.entries = entry_sites(text) if self.executor.capabilities.begins_at_blocks else {}
        self.states: dict[int, Floats] = {}  # by block: (tokens from the first on that a patch changes, hidden)
        self.scores: Floats  # of what follows it, once it is read

    @property
    def beginning(self) -> Feed:
        """What is read by itself, as nothing of it is kept."""
        return Feed(self.row, self.ids[: self.read_ahead], Want.NONE, text_length=len(self.ids))

    @property
    def rest(self) -> Feed:
        return Feed(self.row, self.ids[self.read_ahead :], watch=Watch(frozenset(self.entries.values())))

    def keep(self, rest: Logits) -> None:
        """Keep what patches begin with."""
        self.scores = rest.host().copy()
        kept = slice(self.first - self.read_ahead, None)
        self.states = {block: to_numpy(rest.sites[site])[0][kept] for block, site in self.entries.items()}

    def feed(self, run: PatchedRun[Place]) -> Feed:
        """What a patch changes of the text, in a row of its own."""
        ids = self.ids[run.start :]
        if run.block not in self.states:
            return Feed(self.executor.fork(self.row, run.start), ids, watch=run.watch)
        states = self.states[run.block][run.start - self.first :]
        return Feed(self.executor.fork(self.row), ids, watch=run.watch, begin=BlockInput(run.block, states))


def entry_sites(text: Activations) -> dict[int, str]:
    """Where to read what enters each block but the first, by block.

    None where something is changed by what stands in another place, as that may be in a block before.
    """
    if Watch(changes=text.model.changes).inputs:
        return {}
    return {block: f"blocks.{block - 1}.residual" for block in range(1, text.model.blueprint.blocks)}


@contextmanager
def read_pairs(pairs: Sequence[TextPair], sites: Collection[str]) -> Iterator[list[ReadPair]]:
    """Pairs of one model, read together; what is kept of their second texts is given up again."""
    if not pairs[0].causal:
        yield [ReadPair(pair, _scores(pair), pair.first.values(*sites), None) for pair in pairs]
        return
    executor, watch = pairs[0].first.model.executor, Watch(frozenset(sites))
    firsts = _run_rows(executor, [Feed(executor.open(None), pair.first.ids, watch=watch) for pair in pairs])
    seconds: list[UnpatchedText] = []
    try:
        seconds += (UnpatchedText(pair.second, min(pair.positions)) for pair in pairs)
        executor.run([text.beginning for text in seconds if text.read_ahead])
        for text, rest in zip(seconds, executor.run([text.rest for text in seconds]), strict=True):
            text.keep(rest)
        yield [
            ReadPair(pair, (scores, second.scores), values, second)
            for pair, (scores, values), second in zip(pairs, firsts, seconds, strict=True)
        ]
    finally:
        for text in seconds:
            executor.close(text.row)


def check_size(columns: int, layers: int, tokens: int) -> None:
    """Refuse what would take hours, before anything runs."""
    if tokens > MAX_TOKENS:
        raise InputError(f"patching {columns} × {layers} places of this text reads {tokens:,} tokens. Name a few positions.")


def _scores(pair: TextPair) -> tuple[Floats, Floats]:
    """Of what follows each text behind an encoder, or fills its mask."""
    texts = (pair.first, pair.second)
    if pair.masks is not None:
        first, second = (_mask_scores(text, mask)[0] for text, mask in zip(texts, pair.masks, strict=True))
        return first, second
    executor = pair.first.model.executor
    first, second = (_run_rows(executor, [Feed(executor.open(text.source), text.ids)])[0][0] for text in texts)
    return first, second


def _run_rows(executor: Executor, feeds: Sequence[Feed]) -> list[tuple[Floats, dict[str, Floats]]]:
    """The scores after each feed, and what its watch reads; closes its row."""
    try:
        return [
            (output.host().copy(), {site: to_numpy(value)[0] for site, value in output.sites.items()})
            for output in executor.run(feeds)
        ]
    finally:
        for feed in feeds:
            executor.close(feed.row)


def _mask_scores(
    text: Activations, mask: int, watch: Watch | None = None, begin: BlockInput | None = None
) -> tuple[Floats, dict[str, Floats]]:
    scores, sites = encoder_pass(text.model, text.ids, watch or Watch(), begin)
    assert scores is not None
    return scores[mask], sites
