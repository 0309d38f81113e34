"""The CPU engine over a model's base: texts in, the states of their tokens out.

In an encoder every token sees every other, so a text goes through whole; texts of different lengths go together, without
padding.

Shapes: states (length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import Stored
from glassformer.engine.checks import in_turn
from glassformer.engine.cpu.library import Engine
from glassformer.engine.cpu.pages import CpuRow, Pages
from glassformer.engine.cpu.passes import Floats, Native, Share
from glassformer.engine.protocol import Feed, Want
from glassformer.errors import InputError
from glassformer.sites import Watch

TOGETHER = 256  # tokens of several texts that go through together
STATES = frozenset({"final"})


class Reader(Native):
    """Token ids to states, by the base of a model: whatever head it has is left out."""

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, Stored], *, activations: str | None = None,
        engine: Engine | None = None,
    ) -> None:  # fmt: skip
        last = next(number for number, op in enumerate(blueprint.ops) if op.site == "final")
        base = replace(blueprint, ops=blueprint.ops[: last + 1])
        super().__init__(config, base, tensors, cache="f32", activations=activations, engine=engine)
        self._types: int = getattr(config, "type_vocab_size", 1)

    @in_turn
    def read(self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> list[Floats]:
        """The states of each row's tokens; `types`: which of two texts each token belongs to."""
        found: list[Floats] = []
        ready = self._ready("", STATES, frozenset())
        for numbers in _together([self._checked(row) for row in rows]):
            shares = []
            for number in numbers:
                ids, row = rows[number], CpuRow(Pages(self._format))
                row.own.reserve(0, len(ids))
                feed = Feed(row, ids, Want.NONE, watch=Watch(STATES))
                shares.append(
                    Share(number, feed, row, 0, len(ids), types=self._typed(ids, types[number] if types else None))
                )
            longest = max(share.count for share in shares)
            found += [seen["final"][0] for _, seen in self._pass(ready, shares, longest)]
        return found

    def _checked(self, ids: Sequence[int]) -> int:
        if not len(ids):
            raise InputError("a text has no tokens. Give at least one.")
        if len(ids) > self.context:
            raise InputError(
                f"a text of {len(ids)} tokens does not fit into the model's context of {self.context}. Shorten it."
            )
        self._checks.ids(ids)
        return len(ids)

    def _typed(self, ids: Sequence[int], types: Sequence[int] | None) -> Sequence[int]:
        if types is None:
            return [0] * len(ids)
        if len(types) != len(ids) or not all(0 <= one < self._types for one in types):
            raise InputError(f"token types are one number below {self._types} for each of a text's {len(ids)} tokens.")
        return types


def _together(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of rows that go through together."""
    some: list[int] = []
    for number, length in enumerate(lengths):
        if some and sum(lengths[one] for one in some) + length > TOGETHER:
            yield some
            some = []
        some.append(number)
    if some:
        yield some
