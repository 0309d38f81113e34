"""A text that is read once, to be computed again under patches: each from its own position and block on.

Shapes: states (tokens, hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from glassformer.engine.protocol import BlockInput, Feed, Want, begins_at_blocks
from glassformer.observe.activations import Activations, to_numpy
from glassformer.observe.protocols import Floats
from glassformer.sites import Watch


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


def can_begin_at_blocks(text: Activations) -> bool:
    """Whether nothing in a text's model is changed by what stands in another place: that may be in a block before."""
    return not Watch(changes=text.model.changes).inputs


class UnpatchedText:
    """A text that was read once, without a patch, and what entered each block: patches begin there."""

    def __init__(self, text: Activations, starts: Sequence[int]) -> None:
        self.ids, self.executor = text.ids, text.model.executor
        self.first = min(starts)
        self.states: dict[int, Floats] = {}  # by block: (tokens from the first start on, hidden)
        self.row = self.executor.open(text.source)
        try:
            if self.first:
                self.executor.run([Feed(self.row, self.ids[: self.first], Want.NONE)])
            if begins_at_blocks(self.executor) and can_begin_at_blocks(text):
                entries = {block: f"blocks.{block - 1}.residual" for block in range(1, text.model.blueprint.blocks)}
                watch = Watch(frozenset(entries.values()))
                (output,) = self.executor.run([Feed(self.row, self.ids[self.first :], Want.NONE, watch=watch)])
                self.states = {block: to_numpy(output.sites[site])[0] for block, site in entries.items()}
            elif rest := self.ids[self.first : max(starts)]:
                self.executor.run([Feed(self.row, rest, Want.NONE)])
        except BaseException:
            self.executor.close(self.row)
            raise

    def feed(self, patch: PatchedRun) -> Feed:
        """What a patch changes of the text, in a row of its own."""
        ids = self.ids[patch.start :]
        if patch.block not in self.states:
            return Feed(self.executor.fork(self.row, patch.start), ids, watch=patch.watch)
        states = self.states[patch.block][patch.start - self.first :]
        return Feed(self.executor.fork(self.row), ids, watch=patch.watch, begin=BlockInput(patch.block, states))
