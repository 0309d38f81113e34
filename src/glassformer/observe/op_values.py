"""What each op of a blueprint gave at one position of a text: read at its site, or computed from what was read.

An op without a site (a projection before RoPE, a sum before a norm) computes its value itself, in numpy (`ops/`). It is a
slow statement of the blueprint for one token, and what one number of a model is explained from.

Shapes: a value is (hidden,), or (heads, head_size) where its op has heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from glassformer.blueprints import Op
from glassformer.ground.sites import axes
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats
from glassformer.ops.op import Token


@dataclass
class OpValues:
    """The ops' results at one position: of the text, or of the source if the ops are the encoder's."""

    reading: Activations
    position: int
    _read: dict[str, Floats] = field(default_factory=dict)
    _computed: dict[int, Floats] = field(default_factory=dict)

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.reading.model.blueprint.ops

    @property
    def config(self) -> Any:
        return self.reading.model.config

    def token(self, op: Op) -> Token:
        """The position, as an op needs to know it."""
        ids = (self.reading.source or ()) if op.stack else self.reading.ids
        own = ids[self.position] if self.position < len(ids) else 0
        return Token(self.reading.model, self.position, len(self.reading), own, self._everywhere)

    def prefetch(self, numbers: Iterable[int], patterns: Iterable[int] = ()) -> None:
        """Read whatever these ops' values need, and the weights of these attentions, in as few passes as there can be."""
        sites = {site for number in numbers for site in self._sites(number)}
        self._read_sites(sites | {self.ops[number].inner_site("pattern") for number in patterns})

    def _read_sites(self, sites: set[str]) -> None:
        sites = sites - self._read.keys()
        at = [site for site in sites if self._follows_the_text(site)]
        if at:
            for site, value in self.reading.values_at([self.position], *at).items():
                self._read[site] = np.asarray(value.take(0, axes(site)[1:].index("length")))
        if rest := sites - self._read.keys():
            for site, value in self.reading.values(*rest).items():
                axis = next(n for n, name in enumerate(axes(site)[1:]) if name in ("length", "source"))
                self._read[site] = np.asarray(value.take(min(self.position, value.shape[axis] - 1), axis))

    def value(self, number: int) -> Floats:
        """An op's result at the position."""
        self.prefetch([number])
        return self._value(number)

    def pattern(self, number: int) -> Floats:
        """An attention's weights at the position: (heads, keys)."""
        site = self.ops[number].inner_site("pattern")
        self._read_sites({site})
        return self._read[site]

    def keys(self, number: int) -> Floats:
        """What an attention compares its queries with: (groups, keys, head_size)."""
        return self._everywhere(self.ops[number].inputs[1])

    def _everywhere(self, number: int) -> Floats:
        """An op's result at all positions."""
        site = self.ops[number].site
        assert site is not None
        return self.reading.at(site)

    def _follows_the_text(self, site: str) -> bool:
        """Whether it has a value for each of the text's tokens; others are of the source, or of the text as a whole."""
        return "length" in self.reading.model.blueprint.sites[site]

    def _sites(self, number: int) -> set[str]:
        """The sites that an op's value is read or computed from."""
        op = self.ops[number]
        if self._is_unembedded(op):
            return {self._last_residual}
        if op.read_site is not None:
            return {op.read_site}
        return {site for source in op.inputs for site in self._sites(source)}

    def _is_unembedded(self, op: Op) -> bool:
        """Whether its result is what the model makes of its last residual: scores of the next token."""
        return op.site == "scores" and self.reading.model.writes

    @property
    def _last_residual(self) -> str:
        return f"blocks.{self.reading.model.blueprint.blocks - 1}.residual"

    def _value(self, number: int) -> Floats:
        op = self.ops[number]
        if number in self._computed:
            return self._computed[number]
        if self._is_unembedded(op):
            (self._computed[number],) = self.reading.model.unembed(self._read[self._last_residual][None])
            return self._computed[number]
        if op.read_site is not None:
            value = self._read[op.read_site]
            return value if op.site is not None else value.reshape(-1)  # heads, which its result has joined
        inputs = [self._value(source) for source in op.inputs]
        self._computed[number] = np.asarray(op.value(inputs, self.token(op)), np.float32)
        return self._computed[number]
