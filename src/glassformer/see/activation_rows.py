"""Activations at one site, a row for each token, as a stream: what features are learned from.

A text is read and encoded as far as rows are asked for, so that a short training on a long text is short.

Shapes: rows (tokens, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

import numpy as np

from glassformer.ground.errors import InputError, InputTypeError
from glassformer.ground.typecheck import brief
from glassformer.see.evaluation import added_bos, windows
from glassformer.see.protocols import ModelLike
from glassformer.see.recorded_activations import RecordedActivations
from glassformer.see.text_batches import read_texts, token_sites
from glassformer.see.view import Floats

LENGTH = 128  # tokens that a model reads at once, unless another number is asked for
WINDOWS = 8  # that are read together
CHUNK = 1024  # recorded rows that are given at once


@dataclass(frozen=True)
class TextRows:
    """The rows of a text in windows of so many tokens, read anew each time that they are iterated over.

    The first token of each window is left out: in most decoders its numbers are huge whatever it is.
    """

    model: ModelLike
    pieces: Iterable[str]  # of the text, in order
    site: str
    length: int = LENGTH

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return math.prod(token_sites(self.model, [self.site])[self.site])

    def windows(self) -> Iterator[tuple[int, ...]]:
        """The ids of each window; a text is encoded piece by piece."""
        size, bos = min(self.length, self.model.config.context), added_bos(self.model.tokenizer)
        room = size - (bos is not None)
        ids: list[int] = []
        for piece in self.pieces:
            ids += self.model.tokenizer(piece, add_special_tokens=False)["input_ids"]
            whole = len(ids) // room * room
            yield from windows(ids[:whole], bos, size)
            ids = ids[whole:]
        yield from (last for last in windows(ids, bos, size) if len(last) > 1)

    def __iter__(self) -> Iterator[Floats]:
        sites, spans = token_sites(self.model, [self.site]), self.windows()
        while group := list(islice(spans, WINDOWS)):
            for part in sorted(read_texts(self.model, group, sites), key=attrgetter("number", "start")):
                rows: Floats = part.values[self.site].reshape(len(part.values[self.site]), -1)
                yield rows if part.start else rows[1:]


@dataclass(frozen=True)
class RecordedRows:
    """The rows of recorded activations at a site, without the first token of each text; no model is needed for them."""

    recorded: RecordedActivations
    site: str

    def __post_init__(self) -> None:
        self.recorded.check_site(self.site)

    @property
    def width(self) -> int:
        return math.prod(self.recorded.index.sites[self.site])

    def __iter__(self) -> Iterator[Floats]:
        for index in range(len(self.recorded.index.shards)):
            shard = self.recorded.shard(index)
            values = shard.arrays[self.site]
            kept = np.ones(len(values), bool)
            if not shard.last_only:
                lengths = shard.arrays["lengths"]
                kept[(shard.token_ends - lengths)[lengths > 0]] = False
            rows = np.flatnonzero(kept)
            for at in range(0, len(rows), CHUNK):
                yield values[rows[at : at + CHUNK]].reshape(-1, self.width).astype(np.float32)


def activation_rows(
    model: ModelLike, source: str | Iterable[str] | RecordedActivations, site: str, length: int | None = None
) -> TextRows | RecordedRows:
    """The rows of a text, of a text that comes in pieces, or of what this model's activations were recorded as."""
    names = list(token_sites(model, [site]))  # which refuses a site that has no rows, and knows other libraries' names
    if len(names) != 1:
        raise InputError(f"{site!r} stands for {len(names)} sites. Name one of them, such as {names[0]!r}.")
    (site,) = names
    if not isinstance(source, RecordedActivations):
        if isinstance(source, bytes) or not isinstance(source, Iterable):
            raise InputTypeError(f"source is {brief(source)}; it must be a text, pieces of one, or recorded activations.")
        if length is not None and length < 2:
            raise InputError(f"length is {length}; a window has at least 2 tokens, since its first is left out.")
        return TextRows(model, [source] if isinstance(source, str) else source, site, length or LENGTH)
    if length is not None:
        raise InputError("recorded activations have the lengths that they were recorded with. Leave length out.")
    if source.index.fingerprint.get("weights") != model.weights_digest:
        raise InputError(f"{source.folder} was recorded with other weights than {model.name}'s. Record it again.")
    return RecordedRows(source, site)
