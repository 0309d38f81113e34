"""A pass of a program over some tokens of some rows: which tokens they are, and the values at its sites. For every engine.

Values are numpy arrays or tensors: what is done to them here is written the same for both.

Shapes: buffers (tokens, width).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.engine import checks
from glassformer.engine.paged_rows import PagedRow
from glassformer.engine.program import PatternChange, Program
from glassformer.engine.protocol import Feed, copied, read_length
from glassformer.ground.changes import Change
from glassformer.ground.sites import ENCODER, where_of

SOURCE_SITES = (".cross.key", ".cross.value")  # sites that are in the cached keys and values of a row's source
TreeMask = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]  # with the position of each token


@dataclass(slots=True)
class FeedChunk:
    """The tokens of a feed that go through one pass."""

    index: int  # of the feed in its run
    feed: Feed
    row: PagedRow[Any]
    offset: int  # tokens of the feed in earlier passes
    count: int
    first: int = 0  # the index of its first token in the pass
    token_types: Sequence[int] | None = None
    begin_step: int = 0  # the step that it joins its pass at: later ones begin at a later block

    def part(self, offset: int, count: int) -> FeedChunk:
        """Some of the feed's tokens."""
        return FeedChunk(self.index, self.feed, self.row, offset, count, 0, self.token_types, self.begin_step)

    @property
    def start(self) -> int:
        return self.row.length

    @property
    def is_last(self) -> bool:
        """Whether the feed ends with it."""
        return self.offset + self.count == len(self.feed.ids)

    @property
    def text_length(self) -> int:
        """How many tokens the text has that it is read as part of."""
        return read_length(self.feed, self.start)

    def scored(self) -> int:
        """How many of its tokens are scored: always the last ones."""
        columns = checks.scored_columns(self.feed)
        return max(0, min(columns.stop, self.offset + self.count) - max(columns.start, self.offset))

    def tree_mask(self) -> TreeMask:
        """Which of a tree's tokens each one sees, and the position of each."""
        parents = self.feed.parents or ()
        mask = np.zeros((len(parents), len(parents)), np.uint8)
        positions = np.zeros(len(parents), np.int32)
        for index, parent in enumerate(parents):
            if parent >= 0:
                mask[index] = mask[parent]
            mask[index, index] = 1
            positions[index] = self.start if parent < 0 else positions[parent] + 1
        return mask, positions

    def source_changes(self) -> dict[str, Change]:
        """How the feed's watch changes the keys and values of the row's source, by site."""
        watch = self.feed.watch
        return {} if watch is None else {site: watch.changes[site] for site in watch.changes if site.endswith(SOURCE_SITES)}


def place_chunks(chunks: Sequence[FeedChunk]) -> None:
    """Let the tokens of a pass's chunks follow one another."""
    first = 0
    for chunk in chunks:
        chunk.first = first
        first += chunk.count


def changed_source(chunk: FeedChunk) -> Any:
    """The pages of a row's source for this pass: changed copies of them if the feed's watch changes them."""
    source, changes = chunk.row.source_pages, chunk.source_changes()
    if source is None or not changes:
        return source
    length = len(chunk.row.source)
    changed = source.share(length)
    changed.reserve(0, length)  # copies what it shares
    for site, change in changes.items():
        layer = int(site.split(".")[1])
        keys_values = list(changed.read(layer, length))
        which = 0 if site.endswith(".key") else 1
        keys_values[which] = change.apply(keys_values[which][None], where_of(site, 0))[0]
        changed.write(layer, *keys_values)
    return changed


def pass_sources(program: Program, chunks: Sequence[FeedChunk]) -> list[Any]:
    """The pages of each chunk's source: an encoder writes them, so that what is changed is changed later."""
    decoder = program.scores is not None
    return [changed_source(chunk) if decoder else chunk.row.source_pages for chunk in chunks]


def source_value(source: Any, site: str, length: int) -> Any:
    """The keys or values of a source, as cross-attention reads them."""
    keys, values = source.read(int(site.split(".")[1]), length)
    return (keys if site.endswith(".key") else values)[None]


def by_frequencies(program: Program, chunks: Sequence[FeedChunk]) -> list[list[FeedChunk]]:
    """Chunks, put together where their texts have the same frequencies of RoPE: one pass has one set of them."""
    if not program.depends_on_length:
        return [list(chunks)]
    groups: dict[object, list[FeedChunk]] = {}
    for chunk in chunks:
        groups.setdefault(program.frequency_lengths(chunk.text_length), []).append(chunk)
    return list(groups.values())


def watched_sites(feeds: Sequence[Feed]) -> tuple[frozenset[str], frozenset[str]]:
    """The sites that any of the feeds reads, and those that any changes, but for the scores, which come after the pass."""
    watches = [feed.watch for feed in feeds if feed.watch is not None]
    if not watches:
        return frozenset(), frozenset()
    reads = frozenset().union(*(watch.reads | watch.inputs for watch in watches))
    changes = frozenset().union(*(watch.changes for watch in watches))
    return reads - {"scores"}, changes - {"scores"}


def entry_site(feed: Feed) -> str | None:
    """The site whose value a feed begins with, if it begins at a later block: what leaves the block before."""
    return None if feed.begin is None else f"blocks.{feed.begin.block - 1}.residual"


def stack_sites(sites: frozenset[str], stack: str) -> frozenset[str]:
    """The sites that are in a stack's program."""
    return frozenset(site for site in sites if site.startswith(ENCODER) == bool(stack) and not site.endswith(SOURCE_SITES))


def changes_pattern(feed: Feed) -> bool:
    """Whether a feed changes an attention pattern, which may then look ahead: so such a feed cannot be cut."""
    return feed.watch is not None and any(site.endswith(".pattern") for site in feed.watch.changes)


class ProgramPass:
    """One pass: its chunks, in the order of their tokens, and the values at its sites."""

    program: Program
    chunks: Sequence[FeedChunk]

    @property
    def joined(self) -> Sequence[FeedChunk]:
        """The chunks that the steps are computed for now."""
        return self.chunks

    def buffer(self, index: int) -> Any:
        """A buffer's values for all tokens of the pass."""
        raise NotImplementedError

    def state(self, chunk: FeedChunk) -> Any:
        """The numbers that a chunk's row keeps for its next tokens."""
        assert chunk.row.state is not None
        return chunk.row.state.memory

    def value(self, site: str, chunk: FeedChunk) -> Any:
        """A view of one chunk's value of a site, with the site's own axes."""
        location = self.program.sites[site]
        value = location.value(self.buffer(location.buffer)[chunk.first : chunk.first + chunk.count])
        keys = len(chunk.row.source) if ".cross." in site else chunk.start + len(chunk.feed.ids)
        return value[..., :keys] if location.pattern else value

    def kept_value(self, site: str, chunk: FeedChunk) -> Any:
        """A value that the next pass leaves as it is."""
        return self.value(site, chunk)

    def read_sites(self, chunk: FeedChunk, source: Any) -> dict[str, Any]:
        """The values that a chunk's watch reads; `source`: the pages of its keys and values for cross-attention."""
        if chunk.feed.watch is None:
            return {}
        reads = chunk.feed.watch.reads
        sites = {site: self.kept_value(site, chunk) for site in self.program.sites if site in reads}
        if chunk.is_last and chunk.row.state is not None:
            states, numbers = self.program.states, self.state(chunk)
            sites |= {site: copied(location.value(numbers)) for site, location in states.items() if site in reads}
        if source is not None and self.program.scores is not None:
            of_source = (site for site in reads if site.endswith(SOURCE_SITES))
            sites |= {site: source_value(source, site, len(chunk.row.source)) for site in of_source}
        return sites

    def changes_at(self, site: str) -> list[tuple[FeedChunk, Change]]:
        """The chunks whose watch changes a site, and how."""
        watches = ((chunk, chunk.feed.watch) for chunk in self.joined)
        return [(chunk, watch.changes[site]) for chunk, watch in watches if watch is not None and site in watch.changes]

    def change_states(self) -> None:
        """Change what rows keep for their next tokens, after the pass."""
        for site, location in self.program.states.items():
            for chunk, change in self.changes_at(site):
                if chunk.is_last and chunk.row.state is not None:
                    value = location.value(self.state(chunk))
                    value[...] = change.apply(value, where_of(site, chunk.start, chunk.start + len(chunk.feed.ids)))

    def replace_changed_heads(self, change: PatternChange) -> None:
        """Heads from a changed pattern, for the chunks that change it; all others keep what attention computed."""
        changed, heads = self.buffer(change.changed_heads), self.buffer(change.heads)
        for chunk, _ in self.changes_at(change.site):
            tokens = slice(chunk.first, chunk.first + chunk.count)
            heads[tokens] = changed[tokens]

    def apply_changes(self, site: str) -> None:
        for chunk, change in self.changes_at(site):
            value = self.value(site, chunk)
            inputs = {name: self.value(name, chunk) for name in change.inputs}
            where = where_of(site, chunk.start + chunk.offset, chunk.start + len(chunk.feed.ids), inputs)
            value[...] = change.apply(value, where)

    def apply_changes_before(self, step: int) -> None:
        """All changes that come before a step."""
        for change in self.program.pattern_changes.get(step, ()):
            self.replace_changed_heads(change)
        for site in self.program.changed_sites.get(step, ()):
            self.apply_changes(site)


def stops(program: Program) -> list[int]:
    """The steps before which something is changed, in order."""
    return sorted({*program.changed_sites, *program.pattern_changes})
