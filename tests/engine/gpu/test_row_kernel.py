"""decode.cu, run on the host: in the order of sums that order.py states, whatever else runs, and equal to a plain pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from glassformer.engine.gpu.persistent.row_decoder import RowDecoder
from glassformer.engine.gpu.persistent.row_schedule import RowSchedule
from glassformer.engine.gpu.persistent.schedule import DecoderShape
from glassformer.engine.paged_rows import PAGE
from glassformer.ground.errors import ExecutorError
from tests.engine.gpu.reference import RandomModel, rounded
from tests.engine.gpu.row_model import product, row_weights, squares
from tests.engine.gpu.simulation import SimulatedRowKernel, simulated_map
from tests.sweeps import mostly_swept

SHARED = 232_448
SHAPES = {
    "head norms and biases": DecoderShape(2, 192, 4, 2, 64, 320, 50, 1e-6, True, True),
    "wide heads, several parts": DecoderShape(1, 1152, 2, 1, 128, 2176, 30, 1e-5),
    "more parts than registers hold": DecoderShape(1, 128, 8, 1, 64, 4288, 20, 1e-6, True),
}
PAGES = 6  # of a row
HEAD_ALONE = DecoderShape(0, 1472, 2, 1, 64, 64, 40, 1e-6)


class Rows:
    """A decoder on the simulated device, and rows in its cache, whose pages lie about."""

    def __init__(
        self, model: RandomModel, *, rows: int = 2, multiprocessors: int = 5, seed: int = 1, timeout: float = 2.0,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:  # fmt: skip
        shape = model.shape
        kinds = ("F16", "f16") if dtype == torch.float16 else ("BF16", "bf16")
        schedule = RowSchedule(shape, rows, multiprocessors, SHARED, *kinds)
        kernel, weights = SimulatedRowKernel(schedule, seed), row_weights(model, PAGES * PAGE, dtype)
        self.decoder = RowDecoder(schedule, weights, kernel, timeout=timeout, encode=simulated_map)
        pages = rows * PAGES
        self.pool = torch.full((pages, max(shape.layers, 1), 2, shape.kv_heads, PAGE, shape.head_size), torch.nan).to(dtype)
        self.pages = np.random.default_rng(0).permutation(pages).reshape(rows, PAGES).tolist()

    def run(self, ids: Sequence[Sequence[int]], starts: Sequence[int], steps: int, rows: Sequence[int]) -> Tensor:
        """The logits, (steps, rows, vocabulary), of the best tokens after these ids; `rows`: whose pages."""
        decoded = self.decoder.decode(ids, starts, steps, self.pool, [self.pages[row] for row in rows], scores_from=0)
        assert decoded.scores is not None
        assert decoded.ids == decoded.scores.argmax(-1).tolist()
        return decoded.scores


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 0.015), (torch.float16, 0.004)])  # what inputs are rounded to
@pytest.mark.parametrize("name", mostly_swept(SHAPES, "head norms and biases"))
def test_logits_are_those_of_a_plain_pass(name: str, dtype: torch.dtype, most: float) -> None:
    model = RandomModel(SHAPES[name], seed=1)
    rows, ids = Rows(model, dtype=dtype), [3, 7, 11, 5]
    logits = rows.run([[token] for token in ids], [0], len(ids), [1])[:, 0].numpy()
    shape = model.shape
    cache = np.zeros((shape.layers, 2, shape.kv_heads, len(ids), shape.head_size), np.float32)
    for position, token in enumerate(ids):
        expected, _ = model.forward(token, position, cache, rows.decoder._weights.rotation.numpy())
        error = np.linalg.norm(logits[position] - expected) / np.linalg.norm(expected)
        assert error < most, position


@pytest.mark.parametrize("name", mostly_swept(SHAPES, "head norms and biases"))
def test_a_row_is_the_same_alone_in_company_and_on_another_card(name: str) -> None:
    """Bit for bit, over the border of a page and of a chunk, in one launch or in two, in any order of threads."""
    model = RandomModel(SHAPES[name], seed=2)
    start, steps = 254, 4
    alone = Rows(model, rows=1)
    random = torch.Generator().manual_seed(0)
    begun = torch.randn(alone.pool.shape, generator=random).bfloat16()
    alone.pool[:] = begun
    expected = alone.run([[4]], [start], steps, [0])[:, 0]
    others = Rows(model, rows=3, multiprocessors=7, seed=5)
    for row in (0, 1, 2):
        others.pool[others.pages[row]] = begun[alone.pages[0]]
    first = others.run([[9, 4, 2]], [3, start, 100], 1, [2, 1, 0])
    following = int(first[0, 1].argmax())
    rest = others.run([[following, 8]], [start + 1, 70], steps - 1, [1, 0])
    assert torch.equal(torch.cat([first[:, 1], rest[:, 0]]), expected)


def test_products_and_norms_are_summed_in_the_stated_order() -> None:
    """The head alone: squares of the embedding's numbers, and products of several parts, bit for bit."""
    model = RandomModel(HEAD_ALONE, seed=3)
    logits = Rows(model).run([[5, 9]], [0, 0], 1, [0, 1])[0].numpy()
    for row, token in enumerate((5, 9)):
        x = model.embedding[token]
        mean = squares(x) * np.float32(1 / np.float32(len(x)))
        factor = np.float32(1) / np.sqrt(mean + np.float32(HEAD_ALONE.epsilon))
        np.testing.assert_array_equal(logits[row], product(model.head, rounded(x * model.norms[0])) * factor)


def test_a_block_that_is_missing_ends_in_an_error() -> None:
    model = RandomModel(SHAPES["head norms and biases"], seed=1)
    rows = Rows(model, rows=1, timeout=1e-5)
    with pytest.raises(ExecutorError, match="gave up after"):
        rows.decoder.decode([[3]], [0], 1, rows.pool, rows.pages, absent_block=2)


def test_what_does_not_fit_is_said() -> None:
    shape = SHAPES["head norms and biases"]
    assert RowSchedule(shape, 8, 132, SHARED).misfit() is None
    for other, reason in (
        (replace(shape, head_size=96), "96"),
        (replace(shape, heads=5), "5 heads"),
        (replace(shape, inner=328), "inner size of 328"),
    ):
        assert reason in str(RowSchedule(other, 8, 132, SHARED).misfit())
    assert "shared memory" in str(RowSchedule(shape, 8, 132, 90_000).misfit())
    rows = Rows(RandomModel(shape), rows=1)
    with pytest.raises(ExecutorError, match="3 rows"):
        rows.decoder.decode([[1, 2, 3]], [0, 0, 0], 1, rows.pool, rows.pages * 3)
