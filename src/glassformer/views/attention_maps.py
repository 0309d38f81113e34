"""The attention maps of all heads at once, compact enough for a page: a byte for each weight.

Shapes: weights (layers held, heads, queries, keys), sinks (layers held, heads, queries), flat in this order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.arguments import checked
from glassformer.page.document import Heading, Page, Paragraph, ThumbnailGrid
from glassformer.views.attention import NOTE, SINK, AttentionKind
from glassformer.views.view import View


@dataclass(frozen=True)
class AttentionMaps(View):
    """Every head's map, of as many layers as fit."""

    SCHEMA = "glassformer.attention-maps/1"

    model: str
    kind: AttentionKind
    kinds: tuple[AttentionKind, ...]  # that the model has
    layers: int  # that the model has
    heads: int  # of each layer
    first: int  # the first layer that is held
    queries: tuple[str, ...]  # the tokens that attend
    keys: tuple[str, ...]  # the tokens that are attended to
    causal: bool  # whether later tokens are masked
    windows: tuple[int | None, ...]  # of each layer that is held: so many tokens up to itself can be attended to; None: all
    weights: bytes = field(repr=False)  # 255 × the weight, rounded
    note: str = NOTE
    sinks: bytes | None = field(default=None, repr=False)  # the same of what sinks took; None: there are none

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: attention, every head of layers {self.first} to {self.first + len(self.windows) - 1}"
        layers = tuple(f"layer {self.first + number}" for number in range(len(self.windows)))
        maps, notes = self.maps, [Paragraph(self.note, "dim")]
        if self.sinks is not None:
            maps = np.concatenate((maps, np.frombuffer(self.sinks, np.uint8).reshape(*maps.shape[:-1], 1)), -1)
            notes.insert(0, Paragraph(f"{SINK} is the last column of each map", "dim"))
        grid = ThumbnailGrid(layers, tuple(f"head {head}" for head in range(self.heads)), maps)
        return Page(title, (Heading(title), grid, *notes))

    @property
    def maps(self) -> npt.NDArray[np.uint8]:
        """The weights as an array, 255 for all of a token's attention."""
        shape = (len(self.windows), self.heads, len(self.queries), len(self.keys))
        return np.frombuffer(self.weights, np.uint8).reshape(shape)

    @checked
    def records(self) -> list[dict[str, Any]]:
        """A row for each head of each layer that is held: what it mostly attends to, on the mean over the tokens."""
        means = self.maps.mean(2) / 255  # (layers, heads, keys)
        return [
            {"layer": self.first + layer, "head": head, "key": key, "key_token": self.keys[key], "weight": float(row[key])}
            for layer, heads in enumerate(means)
            for head, row in enumerate(heads)
            for key in [int(row.argmax())]
        ]

    def __repr__(self) -> str:
        return f"AttentionMaps({len(self.windows)} of {self.layers} layers × {self.heads} heads)"
