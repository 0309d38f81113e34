"""Features held at given values inside a model: what they add is replaced, and the rest of the vector stays as it is.

A transcoder's features are read at one site, and what they add is replaced at a later site of the same pass.

Shapes: a site's value (batch, tokens, width), or (batch, heads, tokens, head_size), whose heads lie side by side then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.changes import ComputedChange, Where, as_array
from glassformer.errors import SiteError
from glassformer.sites import where_of

Floats: TypeAlias = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Of a dictionary, what is needed here."""

    @property
    def name(self) -> str: ...

    @property
    def site(self) -> str: ...

    @property
    def is_transcoder(self) -> bool: ...

    def encode_some(self, inputs: Floats, features: Sequence[int]) -> Floats: ...

    def direction(self, feature: int) -> Floats: ...

    def output_scale(self, inputs: Floats) -> tuple[Floats | float, Floats | float]: ...


@dataclass(frozen=True, slots=True)
class FeatureChange(ComputedChange):
    """Some features of a dictionary, each held at a value."""

    dictionary: Encoder | None = None
    features: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        assert self.dictionary is not None
        held = ", ".join(f"{number} at {value:g}" for number, value in zip(self.features, self.values, strict=True))
        return f"{self.dictionary.name} (features held: {held})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.dictionary.site,) if self.dictionary is not None and self.dictionary.is_transcoder else ()

    def apply(self, value: Any, where: Where) -> Any:
        assert self.dictionary is not None
        site = self.dictionary.site if self.inputs else where.site
        read = where.values[site] if self.inputs else value
        inputs = token_rows(as_array(read), where_of(site, where.start).tokens(read)[0])
        try:
            missing = np.array(self.values, np.float32) - self.dictionary.encode_some(inputs, list(self.features))
        except ValueError as error:
            raise SiteError(f"{self.dictionary.name} does not fit {site}: {error}.") from error
        directions = np.stack([self.dictionary.direction(feature) for feature in self.features])
        scale = np.asarray(self.dictionary.output_scale(inputs)[0], np.float32)
        rows = np.asarray(missing @ directions * scale, np.float32)
        added = from_token_rows(rows, where.tokens(value)[0], value.shape)
        if isinstance(value, np.ndarray):
            return (value + added).astype(value.dtype)
        return value + value.new_tensor(added)


def token_rows(value: Floats, axis: int) -> Floats:
    """A row for each token, with all that it has at a site."""
    moved = np.moveaxis(value, axis, 1)
    rows: Floats = np.ascontiguousarray(moved, np.float32).reshape(moved.shape[0] * moved.shape[1], -1)
    return rows


def from_token_rows(rows: Floats, axis: int, shape: Sequence[int]) -> Floats:
    """The inverse of `token_rows`, for a site's value of this shape."""
    batch, *rest = shape
    tokens = rest.pop(axis - 1)
    value: Floats = np.moveaxis(rows.reshape(batch, tokens, *rest), 1, axis).astype(np.float32)
    return value
