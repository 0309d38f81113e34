"""A text that a model has read, and perhaps written: its tokens, and the values inside the model as it read them.

Nothing is recorded beforehand. Each request is a pass of its own over the same tokens, in chunks small enough that memory
does not grow with the text, the layers or the sites. An executor gives a token the same numbers in any batch, so what is
read here is what happened.

Shapes: a site's value loses its batch axis here; `start` counts from the text's first token.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from glassformer.blueprints import Blueprint
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError, SiteError, check_context
from glassformer.ground.files import atomic_file, write_error
from glassformer.ground.progress import Progress
from glassformer.ground.sites import ENCODER, SiteName, Watch, axes, is_module
from glassformer.see.passes import encoder_pass, grouped, open_row
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import Token, describe_tokens
from glassformer.see.view import Floats

warn = logging.getLogger("glassformer").warning
CHUNK_BYTES = 96_000_000  # of sites and scores, at the most
CHUNK_TOKENS = 256  # at the most


@dataclass(frozen=True)
class Chunk:
    """Some tokens of a text, with their scores and the values at some sites."""

    start: int
    count: int
    scores: Floats | None  # (count, vocabulary), if requested
    sites: Mapping[str, Floats]


@dataclass(frozen=True)
class Cost:
    """What recording some sites of a text takes."""

    sites: tuple[str, ...]
    bytes: int

    def summary(self, tokens: int) -> str:
        return f"{len(self.sites)} sites of {tokens:,} tokens: {self.bytes / 1e6:,.1f} MB"


def token_ids(prompt: Iterable[Any]) -> list[int]:
    """A prompt that is ids, after which an answer's ids can follow."""
    parts = list(prompt)
    if not parts or not all(isinstance(part, int) for part in parts):
        raise InputError("answer_ids follow a prompt that is token ids. After a text, leave them out.")
    return parts


@checked_class
@dataclass(frozen=True)
class Activations:
    model: ModelLike
    ids: tuple[int, ...]  # of an encoder-decoder: the target, from its start token on
    source: tuple[int, ...] | None = None  # what an encoder-decoder's encoder reads
    prompt_length: int = 0  # how many of the ids the model did not write
    contents: tuple[str, ...] | None = None  # the texts in the prompt, around which its template stands; None: no template
    owners: tuple[int | None, ...] | None = None  # of two texts that an encoder reads together: which each token is of

    @classmethod
    def of_run(cls, run: RunLike) -> Self:
        """Of a run's prompt and text together."""
        model, ids = run.model, tuple(step.id for step in run.steps)
        if model.decoder_start_token is None:
            return cls(model, (*run.prompt_ids, *ids), None, len(run.prompt_ids), run.contents)
        return cls(model, (model.decoder_start_token, *ids), run.recipe.source(tuple(run.prompt_ids)), 1, run.contents)

    @classmethod
    def of_ids(
        cls, model: ModelLike, prompt_ids: Sequence[int], answer_ids: Sequence[int], contents: Sequence[str] | None
    ) -> Self:
        """Of a prompt and an answer, exactly as their ids say."""
        texts = None if contents is None else tuple(contents)
        if not prompt_ids:
            raise InputError("the prompt has no tokens. Say something.")
        for token_id in (*prompt_ids, *answer_ids):
            if not 0 <= token_id < model.config.vocab_size:
                raise InputError(f"{token_id} is no token id; {model.name} has {model.config.vocab_size}.")
        if model.decoder_start_token is None:
            check_context(len(prompt_ids) + len(answer_ids), model.config.context)
            return cls(model, (*prompt_ids, *answer_ids), None, len(prompt_ids), texts)
        check_context(len(prompt_ids), model.config.context)
        return cls(model, (model.decoder_start_token, *answer_ids), tuple(prompt_ids), 1, texts)

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        return describe_tokens(self.model.tokenizer, self.ids)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(token.text for token in self.tokens)

    @property
    def second(self) -> int | None:
        """Where the second of two texts begins."""
        return None if self.owners is None else self.owners.index(1)

    @cached_property
    def source_tokens(self) -> tuple[Token, ...]:
        return describe_tokens(self.model.tokenizer, self.source or ())

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.ids)} tokens: {self.model.tokenizer.decode(self.ids)[:60]!r})"

    # Passes -----------------------------------------------------------------------------------------------------

    def chunks(
        self, *patterns: SiteName, scored: bool = False, size: int | None = None, progress: Progress | None = None
    ) -> Iterator[Chunk]:
        """The text from its first token to its last, with the values at some sites; `size`: tokens of a chunk."""
        sites = self.sites(*patterns)
        scored = scored or "scores" in sites  # a site that only scored tokens have
        if not self.model.writes:
            yield from self._encoder_chunks(sites)
            return
        executor = self.model.executor
        want, size = Want.ALL if scored else Want.NONE, size or self._chunk_size(sites, scored)
        watch = Watch(frozenset(sites)) if sites else None
        with open_row(executor, self.source) as row:
            for start in range(0, len(self.ids), size):
                ids = self.ids[start : start + size]
                (output,) = executor.run([Feed(row, ids, want, watch=watch, text_length=len(self.ids))])
                values = {site: to_numpy(value)[0] for site, value in output.sites.items()}
                scores = np.stack([output.host(index) for index in range(len(ids))]) if scored else None
                yield Chunk(start, len(ids), scores, values)
                if progress is not None:
                    progress(start + len(ids), len(self.ids))

    def _encoder_chunks(self, sites: Sequence[str]) -> Iterator[Chunk]:
        """In an encoder every token sees every other, so the text goes through whole, with some of the sites at a time."""
        for group in [*grouped(sites, lambda site: self._bytes([site]), CHUNK_BYTES)] or [[]]:
            yield Chunk(0, len(self.ids), *encoder_pass(self.model, self.ids, Watch(frozenset(group)), second=self.second))

    def _chunk_size(self, sites: Sequence[str], scored: bool) -> int:
        """How many tokens go through at a time."""
        per_token = self._bytes([site for site in sites if "length" in axes(site)]) // len(self.ids)
        per_token += self.model.config.vocab_size * 4 if scored else 0
        return max(1, min(CHUNK_TOKENS, CHUNK_BYTES // max(per_token, 1)))

    def _bytes(self, sites: Sequence[str]) -> int:
        return sum(math.prod(self.shape(site)) * 4 for site in sites)

    # Sites ------------------------------------------------------------------------------------------------------

    def sites(self, *patterns: SiteName) -> tuple[str, ...]:
        """The sites of this model that match patterns; a site that is named is in them, even if the model lacks it."""
        if not patterns:
            return ()
        blueprint = self.model.blueprint
        matches = blueprint.site_names.expand(patterns)
        return tuple(site for site in matches if site in blueprint.sites or site in patterns or is_module(site))

    @property
    def stream(self) -> dict[str, str]:
        """The sites of the residual stream by layer: 'embedding', then each block's index."""
        return residual_sites(self.model.blueprint)

    def shape(self, site: str) -> tuple[int, ...]:
        """The shape of a site's value over the whole text, without its batch axis."""
        sizes = {"length": len(self.ids), "keys": len(self.ids), "source": len(self.source or ())}
        shapes = self.model.blueprint.sites
        if is_module(site):
            return sizes["source" if "source" in axes(site) else "length"], self._module_width(site)
        if site not in shapes:
            raise SiteError(f"{self.model.name} has no site {site!r}.")
        return tuple(sizes[size] if isinstance(size, str) else size for size in shapes[site][1:])

    def _module_width(self, site: str) -> int:
        """How many numbers a module gives for each token: a pass tells, over the first one where that is possible."""
        if site not in self._module_widths:
            watch = Watch(frozenset({site}))
            if self.model.writes:
                with open_row(self.model.executor, self.source) as row:
                    (output,) = self.model.executor.run([Feed(row, self.ids[:1], Want.NONE, watch=watch)])
                value = output.sites[site]
            else:
                value = encoder_pass(self.model, self.ids, watch, second=self.second)[1][site]
            self._module_widths[site] = int(value.shape[-1])
        return self._module_widths[site]

    @cached_property
    def _module_widths(self) -> dict[str, int]:
        return {}

    def at(self, site: SiteName) -> Floats:
        """The value at one site, for the whole text: (…, length, …) as its axes say, without the batch."""
        sites = self.sites(site)
        if len(sites) > 1:
            raise SiteError(f"{site!r} means {len(sites)} sites; name one, or get them all with values().")
        (values,) = self.values(*sites).values()
        return values

    def values(self, *patterns: SiteName) -> dict[str, Floats]:
        """The values at any number of sites, by names or patterns such as `blocks.*.attention.pattern`, all in one pass.

        They are held in memory: `cost(…)` says how much of it they take, and `record(…)` writes them to disk instead.
        """
        sites = self.sites(*patterns)
        if sites and self.model.writes and len(self.ids) <= self._chunk_size(sites, "scores" in sites):
            (chunk,) = self.chunks(*sites)  # all of it: nothing is put together
            return {site: chunk.sites[site] for site in sites}
        arrays = {site: np.zeros(self.shape(site), np.float32) for site in sites}
        self._fill(arrays)
        return arrays

    def values_at(self, positions: Sequence[int], *sites: str) -> dict[str, Floats]:
        """The values at some sites and positions of the text: (positions, …), or (…, positions, …) as the axes say."""
        axis = {site: axes(site)[1:].index("length") for site in sites}
        shapes = {
            site: [len(positions) if n == axis[site] else size for n, size in enumerate(self.shape(site))] for site in sites
        }
        values = {site: np.zeros(shapes[site], np.float32) for site in sites}
        for chunk in self.chunks(*sites):
            inside = [
                (to, position - chunk.start)
                for to, position in enumerate(positions)
                if 0 <= position - chunk.start < chunk.count
            ]
            for site, value in chunk.sites.items() if inside else ():
                targets, rows = (list(numbers) for numbers in zip(*inside, strict=True))
                np.moveaxis(values[site], axis[site], 0)[targets] = np.moveaxis(value, axis[site], 0)[rows]
            if self.model.writes and chunk.start + chunk.count > max(positions):
                break  # in an encoder, further chunks have further sites
        return values

    def _fill(self, arrays: Mapping[str, Any], progress: Progress | None = None) -> None:
        """Write the value at each site into its array, chunk by chunk."""
        for chunk in self.chunks(*arrays, progress=progress):
            for site, value in chunk.sites.items():
                names = axes(site)[1:]
                index = [slice(None)] * len(names)
                if "length" in names:
                    index[names.index("length")] = slice(chunk.start, chunk.start + chunk.count)
                if "keys" in names and not site.startswith(ENCODER):
                    index[names.index("keys")] = slice(value.shape[names.index("keys")])
                arrays[site][tuple(index)] = value

    def cost(self, *patterns: SiteName) -> Cost:
        """What recording these sites takes, before anything is run."""
        sites = self.sites(*patterns)
        return Cost(sites, self._bytes(sites))

    def record(self, *patterns: str, folder: str | os.PathLike[str], progress: Progress | None = None) -> tuple[Path, ...]:
        """Write the values at some sites to a folder, one .npy file each, chunk by chunk: memory stays small."""
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
            if cost.bytes > CHUNK_BYTES and progress is None:
                warn(f"recording {cost.summary(len(self.ids))} in {target}")
        except OSError as error:
            raise write_error(target, error) from error
        files = {site: target / f"{site}.npy" for site in cost.sites}
        with ExitStack() as parts:
            arrays = {
                site: _mapped_array(parts.enter_context(atomic_file(file)), self.shape(site)) for site, file in files.items()
            }
            self._fill(arrays, progress)
            for array in arrays.values():
                array.flush()
        return tuple(files.values())


def residual_sites(blueprint: Blueprint) -> dict[str, str]:
    """The sites of a model's residual stream by layer: 'embedding', then each block's index."""
    blocks = range(blueprint.blocks)
    return {"embedding": "embedding", **{str(index): f"blocks.{index}.residual" for index in blocks}}


def _mapped_array(file: Path, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[np.float32]]:
    """An array in a file, with its room on the disk taken: writing to a mapping on a full disk would end the process."""
    array = np.lib.format.open_memmap(file, "w+", np.float32, shape)
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            os.posix_fallocate(opened.fileno(), 0, max(1, file.stat().st_size))
    return array


def to_numpy(value: Any) -> Floats:
    array: Floats = value if isinstance(value, np.ndarray) else value.float().cpu().numpy()
    return array
