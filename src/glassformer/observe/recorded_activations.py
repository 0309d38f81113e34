"""Activations of many texts, read from the folder that they were written to: mapped, so that only what is used is loaded.

    recorded = RecordedActivations("activations")
    recorded[17].text, recorded[17].values("blocks.3.residual")
    for rows in recorded.batches("blocks.3.residual", 1024, seed=0): ...

Shapes: a site's rows (tokens of all texts, …), or (texts, …) where only each text's last token was kept.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from pathlib import Path

import numpy as np

from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError, SiteError, did_you_mean
from glassformer.observe.activation_folder import Index, OpenShard, open_shard, read_index
from glassformer.observe.protocols import Floats
from glassformer.views.activation_files import ActivationFiles, RecordedSite

BUFFER_BYTES = 128_000_000  # of rows that are shuffled together
OPEN_SHARDS = 64  # that stay mapped


@checked_class
class RecordedActivations:
    """The texts of a folder of activations, and what their tokens have at each site."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()
        self.index: Index = read_index(self.folder)
        self._text_ends = list(accumulate(shard.texts for shard in self.index.shards))
        self.shard = lru_cache(OPEN_SHARDS)(partial(open_shard, self.folder, self.index))

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.index.sites)

    @property
    def tokens(self) -> int:
        """How many tokens the texts have in all."""
        return sum(shard.tokens for shard in self.index.shards)

    @property
    def rows(self) -> int:
        """How many rows each site has: one for each token, or for each text where only the last token was kept."""
        return sum(shard.rows for shard in self.index.shards)

    def __len__(self) -> int:
        """How many texts there are."""
        return self._text_ends[-1] if self._text_ends else 0

    def __getitem__(self, number: int) -> RecordedText:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no text {number} among {len(self)}.")
        number %= len(self)
        at = bisect_right(self._text_ends, number)
        return RecordedText(self.shard(at), number - (self._text_ends[at - 1] if at else 0))

    def __iter__(self) -> Iterator[RecordedText]:
        return (self[number] for number in range(len(self)))

    def __repr__(self) -> str:
        return f"RecordedActivations({self.index.model}: {len(self):,} texts, {self.rows:,} rows of {len(self.sites)} sites)"

    def batches(self, site: str, size: int = 1024, *, seed: int | None = None) -> Batches:
        """A site's rows of all texts as float32 arrays (rows, width), in order or shuffled by a seed; anew at each loop."""
        self.check_site(site)
        if size < 1:
            raise InputError(f"size is {size}; a batch has at least one row.")
        return Batches(self, site, size, seed)

    def check_site(self, site: str) -> None:
        """Refuse a site that was not recorded."""
        if site not in self.index.sites:
            raise SiteError(
                f"{self.folder} has no {site!r}.{did_you_mean(site, self.sites)} It has: {', '.join(self.sites)}."
            )

    def summary(self) -> ActivationFiles:
        """What the folder holds."""
        index = self.index
        size = np.dtype(index.dtype).itemsize * self.rows
        sites = tuple(RecordedSite(site, shape, size * math.prod(shape)) for site, shape in index.sites.items())
        cut = sum(shard.cut for shard in index.shards)
        return ActivationFiles(
            index.model, str(self.folder), len(self), self.tokens, self.rows, cut, index.dtype, index.positions,
            len(index.shards), index.complete, sites,
        )  # fmt: skip


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class RecordedText:
    """One of the texts."""

    shard: OpenShard
    number: int  # in its shard

    @property
    def text(self) -> str:
        end = int(self.shard.text_ends[self.number])
        data = self.shard.arrays["text"][end - int(self.shard.arrays["text_lengths"][self.number]) : end]
        return data.tobytes().decode("utf-8", "surrogatepass")

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(self.shard.arrays["ids"][self.shard.tokens(self.number)].tolist())

    def values(self, site: str) -> Floats:
        """What its tokens have at a site, (tokens, …); of the last token alone, where no more was kept."""
        if site not in self.shard.arrays:
            raise SiteError(f"there is no {site!r} here.{did_you_mean(site, self.shard.arrays)}")
        values: Floats = self.shard.arrays[site][self.shard.rows(self.number)].astype(np.float32)
        return values

    def __repr__(self) -> str:
        return f"RecordedText({self.text[:60]!r})"


@dataclass(frozen=True)
class Batches:
    """A site's rows, batch after batch; each loop begins anew.

    Shuffling takes as many shards at a time as fit into memory, in an order that the seed draws, and shuffles their rows.
    """

    recorded: RecordedActivations
    site: str
    size: int
    seed: int | None = None

    def __len__(self) -> int:
        return -(-self.recorded.rows // self.size)

    def __iter__(self) -> Iterator[Floats]:
        width = math.prod(self.recorded.index.sites[self.site])
        left: Floats = np.empty((0, width), np.float32)
        for rows in self._parts(width):
            rows = np.concatenate((left, rows)) if len(left) else rows
            whole = len(rows) // self.size * self.size
            yield from (rows[at : at + self.size] for at in range(0, whole, self.size))
            left = rows[whole:].copy()
        if len(left):
            yield left

    def _parts(self, width: int) -> Iterator[Floats]:
        """Rows of several shards at a time."""
        shards = self.recorded.index.shards
        random = None if self.seed is None else np.random.default_rng(self.seed)
        order = list(range(len(shards))) if random is None else random.permutation(len(shards)).tolist()
        groups: list[list[int]] = []
        total = 0
        for number in order:
            total += shards[number].rows
            if not groups or total * width * 4 > BUFFER_BYTES:
                groups.append([])
                total = shards[number].rows
            groups[-1].append(number)
        for group in groups:
            parts = [self.recorded.shard(at).arrays[self.site] for at in group]
            joined = np.concatenate([np.asarray(part, np.float32).reshape(len(part), -1) for part in parts])
            yield joined if random is None else joined[random.permutation(len(joined))]
