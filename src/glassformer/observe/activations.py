"""A text that a model has read, and perhaps written: its tokens, and whatever is asked of what happened to them.

Nothing is recorded beforehand. What is asked for is read in a pass of its own over the same tokens, in chunks small enough
that what is held at once does not grow with the text, the layers or the sites. An executor gives a token the same numbers in
any company, so what is seen here is what happened.

Shapes: a site's value loses its batch axis here; `start` counts from the text's first token.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from glassformer.engine.protocol import Feed, Want
from glassformer.errors import InputError, SiteError
from glassformer.observe.tokens import describe_tokens
from glassformer.sites import ENCODER, Watch, axes, expand
from glassformer.views.tokens import Token

if TYPE_CHECKING:
    from glassformer.observe.protocols import Floats, ModelLike, RunLike
from glassformer.progress import Progress

note = logging.getLogger("glassformer").warning
HELD = 64_000_000  # bytes that are held of what is seen, at once
MOST = 256  # tokens of a chunk


@dataclass(frozen=True)
class Chunk:
    """Some tokens of a text, and what was seen of them."""

    start: int
    count: int
    scores: Floats | None  # (count, vocabulary), if they were wanted
    sites: Mapping[str, Floats]


@dataclass(frozen=True)
class Cost:
    """What recording some sites of a text takes."""

    sites: tuple[str, ...]
    bytes: int

    def summary(self, tokens: int) -> str:
        return f"{len(self.sites)} sites of {tokens:,} tokens: {self.bytes / 1e6:,.1f} MB"


@dataclass(frozen=True)
class Activations:
    model: ModelLike
    ids: tuple[int, ...]  # of an encoder-decoder: the target, with what it begins with
    source: tuple[int, ...] | None = None  # what an encoder-decoder's encoder reads
    given: int = 0  # how many of the ids were there before the model wrote

    @classmethod
    def of_run(cls, run: RunLike) -> Self:
        """Of a run's prompt and text together."""
        model, ids = run.model, tuple(step.id for step in run.steps)
        if model.start is None:
            return cls(model, (*run.ids, *ids), None, len(run.ids))
        return cls(model, (model.start, *ids), run.ids, 1)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        return describe_tokens(self.model.tokenizer, self.ids)

    @cached_property
    def source_tokens(self) -> tuple[Token, ...]:
        return describe_tokens(self.model.tokenizer, self.source or ())

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.ids)} tokens: {self.model.tokenizer.decode(self.ids)[:60]!r})"

    # Passes -----------------------------------------------------------------------------------------------------

    def chunks(
        self, *patterns: str, scored: bool = False, size: int | None = None, progress: Progress | None = None
    ) -> Iterator[Chunk]:
        """The text from its first token to its last, with what lies at some sites; never much of it at once.

        `size`: so many tokens at a time, where somebody must know.
        """
        sites = self.sites(*patterns)
        scored = scored or "scores" in sites  # which a site shows of those that are scored
        if not self.model.writes:
            yield from self._whole(sites)
            return
        executor = self.model.executor
        row = executor.open(self.source)
        want, size = Want.ALL if scored else Want.NONE, size or self._chunk(sites, scored)
        try:
            for start in range(0, len(self.ids), size):
                ids = self.ids[start : start + size]
                (found,) = executor.run([Feed(row, ids, want, watch=Watch(frozenset(sites)) if sites else None)])
                seen = {site: _floats(value)[0] for site, value in found.sites.items()}
                scores = np.stack([found.host(number) for number in range(len(ids))]) if scored else None
                yield Chunk(start, len(ids), scores, seen)
                if progress is not None:
                    progress(start + len(ids), len(self.ids))
        finally:
            executor.close(row)

    def _whole(self, sites: Sequence[str]) -> Iterator[Chunk]:
        """In an encoder every token sees every other, so the text goes through whole, with some of the sites at a time."""
        group: list[str] = []
        held = 0
        for site in sites:
            size = math.prod(self.shape(site)) * 4
            if group and held + size > HELD:
                yield Chunk(0, len(self.ids), *self.model.encoder_pass(self.ids, Watch(frozenset(group))))
                group, held = [], 0
            group.append(site)
            held += size
        yield Chunk(0, len(self.ids), *self.model.encoder_pass(self.ids, Watch(frozenset(group))))

    def _chunk(self, sites: Sequence[str], scored: bool) -> int:
        """How many tokens go through at a time."""
        own = [site for site in sites if "length" in axes(site)]
        bytes_each = sum(math.prod(self.shape(site)) * 4 for site in own) // len(self.ids)
        bytes_each += self.model.config.vocab_size * 4 if scored else 0
        return max(1, min(MOST, HELD // max(bytes_each, 1)))

    # Sites ------------------------------------------------------------------------------------------------------

    def sites(self, *patterns: str) -> tuple[str, ...]:
        """The sites that patterns mean in this model."""
        blueprint = self.model.blueprint
        if not patterns:
            return ()
        known = blueprint.sites
        found = expand(patterns, blueprint.blocks, blueprint.encoder)
        return tuple(site for site in found if site in known or site in patterns)

    def shape(self, site: str) -> tuple[int, ...]:
        """What a site's value of the whole text measures, without its batch axis."""
        sizes = {"length": len(self.ids), "keys": len(self.ids), "source": len(self.source or ())}
        shapes = self.model.blueprint.sites
        if site not in shapes:
            raise SiteError(f"{self.model.name} has no site {site!r}.")
        return tuple(sizes[size] if isinstance(size, str) else size for size in shapes[site][1:])

    def at(self, site: str) -> Floats:
        """What lies at one site, for the whole text: (…, length, …) as its axes say, without the batch."""
        (site,) = self._one(site)
        found = np.zeros(self.shape(site), np.float32)
        for chunk in self.chunks(site):
            self.put(found, site, chunk)
        return found

    def _one(self, site: str) -> tuple[str, ...]:
        sites = self.sites(site)
        if len(sites) > 1:
            raise SiteError(f"{site!r} means {len(sites)} sites; name one, or record() them all.")
        return sites

    def put(self, whole: Any, site: str, chunk: Chunk) -> None:
        """Lay a chunk's value into the whole text's."""
        value = chunk.sites.get(site)
        if value is None:  # an encoder's sites come with the first chunk
            return
        names = axes(site)[1:]
        index = [slice(None)] * len(names)
        if "length" in names:
            index[names.index("length")] = slice(chunk.start, chunk.start + chunk.count)
        if "keys" in names and not site.startswith(ENCODER):
            index[names.index("keys")] = slice(value.shape[names.index("keys")])
        whole[tuple(index)] = value

    def cost(self, *patterns: str) -> Cost:
        """What recording these sites takes, before anything is run."""
        sites = self.sites(*patterns)
        return Cost(sites, sum(math.prod(self.shape(site)) * 4 for site in sites))

    def record(self, *patterns: str, folder: str | os.PathLike[str], progress: Progress | None = None) -> tuple[Path, ...]:
        """Write what lies at some sites to a folder, one .npy file each, as it comes: memory stays small, whatever it is."""
        target = Path(folder)
        if not patterns:
            raise InputError("name the sites to record, such as 'blocks.*.attention.pattern'.")
        cost = self.cost(*patterns)
        try:
            target.mkdir(parents=True, exist_ok=True)
            room = os.statvfs(target).f_bavail * os.statvfs(target).f_frsize if hasattr(os, "statvfs") else None
            if room is not None and cost.bytes > room:
                raise InputError(
                    f"recording takes {cost.bytes / 1e9:.1f} GB, and {str(target)!r} has {room / 1e9:.1f} GB free."
                )
            if cost.bytes > HELD and progress is None:
                note(f"recording {cost.summary(len(self.ids))} in {target}")
            files = {site: target / f"{site}.npy" for site in cost.sites}
            held = {
                site: np.lib.format.open_memmap(file, "w+", np.float32, self.shape(site)) for site, file in files.items()
            }
        except OSError as error:
            raise InputError(f"{str(target)!r} cannot be written: {error.strerror or error}.") from error
        for chunk in self.chunks(*cost.sites, progress=progress):
            for site in chunk.sites:
                self.put(held[site], site, chunk)
        for one in held.values():
            one.flush()
        return tuple(files.values())


def _floats(value: Any) -> Floats:
    """What an executor saw, as numpy has it."""
    found: Floats = value if isinstance(value, np.ndarray) else value.float().cpu().numpy()
    return found
