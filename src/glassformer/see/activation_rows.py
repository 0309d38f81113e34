"""Activations at one site, or at two side by side, a row for each token, as a stream: what features are learned from.

A text is read and encoded as far as rows are asked for, so that a short training on a long text is short.

Shapes: rows (tokens, width), the width of both sites together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

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


class SiteRows(ABC):
    """Rows of one site; or of two, what a transcoder reads and what it predicts."""

    site: str
    site_out: str | None

    def __post_init__(self) -> None:
        if self.site == self.site_out:
            raise InputError(f"a transcoder predicts another site than {self.site}, which it reads. Name another, or none.")

    @abstractmethod
    def shape(self, site: str) -> tuple[int, ...]:
        """The shape of one token's numbers."""

    @abstractmethod
    def __iter__(self) -> Iterator[Floats]: ...

    @property
    def sites(self) -> tuple[str, ...]:
        return (self.site,) if self.site_out is None else (self.site, self.site_out)

    @property
    def width(self) -> int:
        """How many numbers are read of each token."""
        return math.prod(self.shape(self.site))

    @property
    def predicted(self) -> int:
        """How many numbers of each row are to be predicted from those before them: 0 of an autoencoder."""
        return 0 if self.site_out is None else math.prod(self.shape(self.site_out))


@dataclass(frozen=True)
class TextRows(SiteRows):
    """The rows of a text in windows of `length` tokens, read anew each time that they are iterated over.

    The first token of each window is left out: in most decoders its numbers are huge whatever it is.
    """

    model: ModelLike
    pieces: Iterable[str]  # of the text, in order
    site: str
    site_out: str | None = None
    length: int = LENGTH

    def shape(self, site: str) -> tuple[int, ...]:
        return token_sites(self.model, [site])[site]

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
        sites, spans = token_sites(self.model, self.sites), self.windows()
        while group := list(islice(spans, WINDOWS)):
            for part in sorted(read_texts(self.model, group, sites), key=attrgetter("text_index", "start")):
                rows = _side_by_side([part.values[site] for site in self.sites])
                yield rows if part.start else rows[1:]


@dataclass(frozen=True)
class RecordedRows(SiteRows):
    """The rows of recorded activations, without the first token of each text; no model is needed for them."""

    recorded: RecordedActivations
    site: str
    site_out: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for site in self.sites:
            self.recorded.check_site(site)

    def shape(self, site: str) -> tuple[int, ...]:
        return self.recorded.index.sites[site]

    def __iter__(self) -> Iterator[Floats]:
        for index in range(len(self.recorded.index.shards)):
            shard = self.recorded.shard(index)
            values = [shard.arrays[site] for site in self.sites]
            kept = np.ones(len(values[0]), bool)
            if not shard.last_only:
                lengths = shard.arrays["lengths"]
                kept[(shard.token_ends - lengths)[lengths > 0]] = False
            rows = np.flatnonzero(kept)
            for start in range(0, len(rows), CHUNK):
                yield _side_by_side([array[rows[start : start + CHUNK]] for array in values])


def activation_rows(
    model: ModelLike,
    source: str | Iterable[str] | RecordedActivations,
    site: str,
    length: int | None = None,
    site_out: str | None = None,
) -> SiteRows:
    """The rows of a text, of a text that comes in pieces, or of what this model's activations were recorded as.

    With `site_out`, what a transcoder is to predict stands behind what it reads.
    """
    site, site_out = _one_site(model, site), None if site_out is None else _one_site(model, site_out)
    if not isinstance(source, RecordedActivations):
        if isinstance(source, bytes) or not isinstance(source, Iterable):
            raise InputTypeError(f"source is {brief(source)}; it must be a text, pieces of one, or recorded activations.")
        if length is not None and length < 2:
            raise InputError(f"length is {length}; a window has at least 2 tokens, since its first is left out.")
        return TextRows(model, [source] if isinstance(source, str) else source, site, site_out, length or LENGTH)
    if length is not None:
        raise InputError("recorded activations have the lengths that they were recorded with. Leave length out.")
    if source.index.fingerprint.get("weights") != model.weights_digest:
        raise InputError(f"{source.folder} was recorded with other weights than {model.name}'s. Record it again.")
    return RecordedRows(source, site, site_out)


def _one_site(model: ModelLike, name: str) -> str:
    names = list(token_sites(model, [name]))  # which refuses a site that has no rows, and knows other libraries' names
    if len(names) != 1:
        raise InputError(f"{name!r} stands for {len(names)} sites. Name one of them, such as {names[0]!r}.")
    return names[0]


def _side_by_side(values: Sequence[npt.NDArray[Any]]) -> Floats:
    """The sites' numbers of each token in one row."""
    rows = [np.asarray(array, np.float32).reshape(len(array), -1) for array in values]
    return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)
