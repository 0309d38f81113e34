"""Features held at given values inside a model: what they add is replaced, and the rest of the vector stays as it is.

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

Floats: TypeAlias = npt.NDArray[np.float32]


class Encoder(Protocol):
    """Of a dictionary, what is needed here."""

    @property
    def name(self) -> str: ...

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

    def apply(self, value: Any, where: Where) -> Any:
        assert self.dictionary is not None
        axis = where.tokens(value)[0]
        inputs, shape = token_rows(as_array(value), axis)
        try:
            missing = np.array(self.values, np.float32) - self.dictionary.encode_some(inputs, list(self.features))
        except ValueError as error:
            raise SiteError(f"{self.dictionary.name} does not fit {where.site}: {error}.") from error
        directions = np.stack([self.dictionary.direction(feature) for feature in self.features])
        scale = np.asarray(self.dictionary.output_scale(inputs)[0], np.float32)
        rows = np.asarray(missing @ directions * scale, np.float32)
        added = from_token_rows(rows, axis, shape)
        if isinstance(value, np.ndarray):
            return (value + added).astype(value.dtype)
        return value + value.new_tensor(added)


def token_rows(value: Floats, axis: int) -> tuple[Floats, tuple[int, ...]]:
    """A row for each token, with all that it has at a site; and the shape to go back to."""
    moved = np.moveaxis(value, axis, 1)
    rows: Floats = np.ascontiguousarray(moved, np.float32).reshape(moved.shape[0] * moved.shape[1], -1)
    return rows, moved.shape


def from_token_rows(rows: Floats, axis: int, shape: tuple[int, ...]) -> Floats:
    """The inverse of `token_rows`."""
    value: Floats = np.moveaxis(rows.reshape(shape), 1, axis).astype(np.float32)
    return value
