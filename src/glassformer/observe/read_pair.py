"""A pair of texts that was read once, and the second of them computed again under patches.

Nothing that stands before the first difference can differ, nor can anything in the blocks before a patch: so the text is
read once, and every patch begins at its own position and block, with what entered it there. All patches of a position go
through together.

Shapes: states (tokens, hidden); scores (vocabulary).
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from glassformer.engine.protocol import BlockInput, Executor, Feed, Logits, Want
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch
from glassformer.observe.activations import Activations, to_numpy
from glassformer.observe.protocols import Floats
from glassformer.observe.text_pair import TextPair

LONG_PREFIX = 64  # tokens before the first patch, from which on they are read by themselves
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
            for batch in (here[at : at + size] for at in range(0, len(here), size)):
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
    scores, sites = text.model.encoder_pass(text.ids, watch or Watch(), begin)
    assert scores is not None
    return scores[mask], sites
