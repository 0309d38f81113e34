"""A text that is read once, to be computed again under patches: each from its own position and block on.

Shapes: states (tokens, hidden).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from glassformer.engine.protocol import BlockInput, Feed, Logits, Want
from glassformer.ground.sites import Watch
from glassformer.observe.activations import Activations, to_numpy
from glassformer.observe.protocols import Floats

LONG_PREFIX = 64  # tokens before the first patch, from which on they are read by themselves


class PatchedRun(Protocol):
    """What is changed and read of a text, and where that begins."""

    @property
    def watch(self) -> Watch: ...

    @property
    def start(self) -> int:
        """The first position that is changed."""

    @property
    def block(self) -> int:
        """The first block in which anything is changed or read."""


def entry_sites(text: Activations) -> dict[int, str]:
    """Where to read what enters each block but the first, by block.

    None where something is changed by what stands in another place, as that may be in a block before.
    """
    if Watch(changes=text.model.changes).inputs:
        return {}
    return {block: f"blocks.{block - 1}.residual" for block in range(1, text.model.blueprint.blocks)}


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

    def feed(self, patch: PatchedRun) -> Feed:
        """What a patch changes of the text, in a row of its own."""
        ids = self.ids[patch.start :]
        if patch.block not in self.states:
            return Feed(self.executor.fork(self.row, patch.start), ids, watch=patch.watch)
        states = self.states[patch.block][patch.start - self.first :]
        return Feed(self.executor.fork(self.row), ids, watch=patch.watch, begin=BlockInput(patch.block, states))


@contextmanager
def read_unpatched(texts: Sequence[tuple[Activations, int]]) -> Iterator[list[UnpatchedText]]:
    """Texts of one model, read together, each with the first position that a patch changes; their rows are closed again."""
    opened: list[UnpatchedText] = []
    try:
        opened += (UnpatchedText(text, first) for text, first in texts)
        executor = opened[0].executor
        executor.run([text.beginning for text in opened if text.read_ahead])
        for text, rest in zip(opened, executor.run([text.rest for text in opened]), strict=True):
            text.keep(rest)
        yield opened
    finally:
        for text in opened:
            text.executor.close(text.row)
