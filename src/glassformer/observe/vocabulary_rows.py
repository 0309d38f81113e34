"""A table with a row for each token, a block of rows at a time, so that memory does not grow with the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

from glassformer.observe.protocols import Floats, ModelLike

BLOCK_ROWS = 8192


def vocabulary_blocks(model: ModelLike, table: str) -> Iterator[tuple[range, Floats]]:
    """The rows of a table by name: which, and their values in float32."""
    (count,) = {weight.shape[0] for weight in model.blueprint.weights if weight.name == table}
    for start in range(0, count, BLOCK_ROWS):
        rows = range(start, min(start + BLOCK_ROWS, count))
        block = model.weight(table, rows)
        assert block is not None
        yield rows, block
