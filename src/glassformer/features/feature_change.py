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

from glassformer.ground.changes import ComputedChange, Where, like
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import where_of

Floats: TypeAlias = npt.NDArray[np.float32]


class FeatureEncoder(Protocol):
    """Of a dictionary, what is needed here."""

    @property
    def name(self) -> str: ...

    @property
    def site(self) -> str: ...

    @property
    def is_transcoder(self) -> bool: ...

    def encode_some(self, inputs: Any, features: Sequence[int]) -> Any: ...

    def direction(self, feature: int) -> Floats: ...

    def output_scale(self, inputs: Any) -> tuple[Any, Any]: ...


@dataclass(frozen=True, slots=True)
class FeatureChange(ComputedChange):
    """Some features of a dictionary, each held at a value."""

    dictionary: FeatureEncoder | None = None
    features: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        assert self.dictionary is not None
        held = ", ".join(f"{feature} at {value:g}" for feature, value in zip(self.features, self.values, strict=True))
        return f"{self.dictionary.name} (features held: {held})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.dictionary.site,) if self.dictionary is not None and self.dictionary.is_transcoder else ()

    def apply(self, value: Any, where: Where) -> Any:
        assert self.dictionary is not None
        site = self.dictionary.site if self.inputs else where.site
        read = where.values[site] if self.inputs else value
        inputs = token_rows(read, where_of(site, where.start).tokens(read)[0])
        try:
            activations = self.dictionary.encode_some(inputs, list(self.features))
        except (RuntimeError, ValueError) as error:
            raise SiteError(f"{self.dictionary.name} does not fit {site}: {str(error).splitlines()[0]}.") from error
        directions = np.stack([self.dictionary.direction(feature) for feature in self.features])
        missing = like(np.array(self.values), inputs) - activations
        added = missing @ like(directions, inputs) * self.dictionary.output_scale(inputs)[0]
        return value + like(from_token_rows(added, where.tokens(value)[0], value.shape), value)


def token_rows(value: Any, axis: int) -> Any:
    """A row for each token, with all that it has at a site, in at least 32 bits."""
    rows = value.swapaxes(1, axis).reshape(value.shape[0] * value.shape[axis], -1)
    if isinstance(rows, np.ndarray):
        return np.ascontiguousarray(rows, np.float32)
    return rows if rows.dtype.itemsize >= 4 else rows.float()


def from_token_rows(rows: Any, axis: int, shape: Sequence[int]) -> Any:
    """The inverse of `token_rows`, for a site's value of this shape."""
    batch, *rest = shape
    tokens = rest.pop(axis - 1)
    return rows.reshape(batch, tokens, *rest).swapaxes(1, axis)
