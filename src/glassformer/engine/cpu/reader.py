"""The CPU engine over a model's base: token ids to hidden states.

In an encoder every token sees every other, so a text is never cut; texts of different lengths go together, without padding.

Shapes: states (length, hidden).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from glassformer.blueprints import Blueprint, Config
from glassformer.checkpoint import StoredTensor
from glassformer.engine.checks import locked
from glassformer.engine.cpu.kv_pages import CpuRow
from glassformer.engine.cpu.library import Engine
from glassformer.engine.cpu.passes import Floats, NativeModel
from glassformer.engine.program_pass import FeedChunk, by_frequencies
from glassformer.engine.protocol import Feed, Want
from glassformer.ground.errors import InputError, check_context
from glassformer.ground.sites import Watch

MAX_TOKENS = 256  # of several texts in one pass
STATES = frozenset({"final"})


class CpuReader(NativeModel):
    """Token ids to states, by the base of a model: whatever head it has is left out."""

    def __init__(
        self, config: Config, blueprint: Blueprint, tensors: Mapping[str, StoredTensor], *, activations: str | None = None,
        engine: Engine | None = None,
    ) -> None:  # fmt: skip
        last = next(number for number, op in enumerate(blueprint.ops) if op.site == "final")
        base = replace(blueprint, ops=blueprint.ops[: last + 1])
        super().__init__(config, base, tensors, cache="f32", activations=activations, engine=engine)
        self._type_count: int = getattr(config, "type_vocab_size", 0)

    @locked
    def read(self, rows: Sequence[Sequence[int]], types: Sequence[Sequence[int]] | None = None) -> list[Floats]:
        """The states of each row's tokens; `types`: which of two texts each token belongs to."""
        states: dict[int, Floats] = {}
        prepared = self._program("", STATES)
        for numbers in _batches([self._checked_length(row) for row in rows]):
            chunks = []
            for number in numbers:
                ids, row = rows[number], CpuRow(self._new_pages())
                row.pages.reserve(0, len(ids))
                feed = Feed(row, ids, Want.NONE, watch=Watch(STATES))
                token_types = self._token_types(ids, types[number] if types else None)
                chunks.append(FeedChunk(number, feed, row, 0, len(ids), token_types=token_types))
            for group in by_frequencies(prepared.program, chunks):
                for chunk, result in zip(group, self._run_pass(prepared, group), strict=True):
                    states[chunk.number] = result.sites["final"][0]
        return [states[number] for number in range(len(rows))]

    def _checked_length(self, ids: Sequence[int]) -> int:
        if not len(ids):
            raise InputError("a text has no tokens. Give at least one.")
        check_context(len(ids), self.context)
        self._checks.check_ids(ids)
        return len(ids)

    def _token_types(self, ids: Sequence[int], types: Sequence[int] | None) -> Sequence[int]:
        if types is None or not self._type_count:  # a model without types reads none, whatever its tokenizer says
            return [0] * len(ids)
        if len(types) != len(ids) or not all(0 <= number < self._type_count for number in types):
            raise InputError(f"token types are one number below {self._type_count} for each of a text's {len(ids)} tokens.")
        return types


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The numbers of the rows of each pass."""
    batch: list[int] = []
    for number, length in enumerate(lengths):
        if batch and sum(lengths[row] for row in batch) + length > MAX_TOKENS:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
