"""Composition of heads: how much each reads of what each earlier one writes (Elhage et al. 2021).

A head reads the stream three times: for its queries, its keys and its values. If W is one of its maps (QK from either side,
or OV) and OV that of an earlier head, then the norm of their product over the product of their norms says how far the one
reads from where the other writes: 1 at the most, and 1 / sqrt(hidden) in the mean square if they had nothing to do with each
other, that is, if one of them were turned at random. Positions and biases are no part of it; norms are folded in by their
weights.

No map is built: W = A B with few columns between, and the norm of A X is that of R X, where R is the small triangle of A's
QR factorization.

Shapes: maps (heads, head_size, hidden) and (heads, hidden, head_size).
"""

from __future__ import annotations

import math

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.observe.head_weights import AttentionWeights
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.views.composition import Composition, HeadName

MAX_BYTES = 1_000_000_000  # of what earlier heads write, if all layers are compared
MAX_PRODUCTS = 10**13  # multiplications


def composition(
    model: ModelLike, layer: int | None = None, *, baseline: bool = False, progress: Progress | None = None
) -> Composition:
    """The composition of all pairs of heads, or of those that read in one layer with all before it."""
    blocks = range(model.blueprint.blocks)
    layers = [AttentionWeights(model, block) for block in blocks]
    if layer is not None:
        AttentionWeights(model, layer)  # refuses one that is not there
    reading = [block for block in blocks[1:] if layer in (None, block)]
    if not reading:
        raise InputError(f"no head comes before layer {layer or 0} of {model.name}, so none composes with one.")
    hidden, widths = model.config.hidden_size, [weights.op.shape[-1] for weights in layers]
    assert all(isinstance(width, int) for width in widths)
    size = sum(int(width) for width in widths)
    products = 3 * hidden * sum(int(widths[block]) * sum(map(int, widths[:block])) for block in reading)
    if 4 * hidden * size > MAX_BYTES * (1 if layer is None else 4) or products > MAX_PRODUCTS:
        raise InputError(
            f"all heads of {model.name} are {products / 1e12:.1f} trillion products to compare, which is too many here. "
            "Name a layer that reads."
        )
    written = [_writes(layers[block]) for block in range(max(reading))]
    earlier = tuple(HeadName(block, head) for block in range(max(reading)) for head in range(layers[block].heads))
    later = tuple(HeadName(block, head) for block in reading for head in range(layers[block].heads))
    base = 1 / math.sqrt(hidden)
    grids = np.full((3, len(later), len(earlier)), np.nan)
    row = 0
    for done, block in enumerate(reading, 1):
        maps, column = _reads(layers[block]), 0
        heads = layers[block].heads
        for before in range(block):
            shares = _shares(maps, written[before])
            grids[:, row : row + heads, column : column + shares.shape[-1]] = shares - (base if baseline else 0)
            column += shares.shape[-1]
        row += heads
        if progress is not None:
            progress(done, len(reading))
    query, key, value = (
        tuple(tuple(None if math.isnan(share) else share for share in line) for line in grid.tolist()) for grid in grids
    )
    return Composition(model.name, base, baseline, later, earlier, query, key, value)


def _triangles(maps: Floats) -> Floats:
    """The small factors of tall matrices: as long as these in every direction. (heads, n, n) of (heads, many, n)."""
    return np.asarray(np.linalg.qr(maps, mode="r"), np.float32)


def _writes(weights: AttentionWeights) -> Floats:
    """What stands for each head's OV on the right: (heads, hidden, head_size), each of norm 1."""
    values = weights.input_map(2)
    return _of_norm_1(weights.output_map @ _triangles(values.swapaxes(1, 2)).swapaxes(1, 2))


def _reads(weights: AttentionWeights) -> Floats:
    """What stands for each head's maps on the left, by queries, keys and values: (3, heads, head_size, hidden)."""
    queries, keys, values = (weights.input_map(source) for source in range(3))
    by_query = _triangles(keys.swapaxes(1, 2)) @ queries
    by_key = _triangles(queries.swapaxes(1, 2)) @ keys
    by_value = _triangles(weights.output_map) @ values
    return np.stack([_of_norm_1(maps) for maps in (by_query, by_key, by_value)])


def _of_norm_1(maps: Floats) -> Floats:
    norms = np.sqrt((maps.astype(np.float64) ** 2).sum((-2, -1), keepdims=True))
    return np.asarray(maps / np.where(norms > 0, norms, 1.0), np.float32)


def _shares(reads: Floats, writes: Floats) -> Floats:
    """The norms of all products: (3, heads that read, heads that write)."""
    kinds, later, size, hidden = reads.shape
    earlier, _, width = writes.shape
    products = reads.reshape(-1, hidden) @ writes.swapaxes(0, 1).reshape(hidden, -1)
    squares = (products * products).reshape(kinds, later, size, earlier, width).sum((2, 4), dtype=np.float64)
    return np.asarray(np.sqrt(squares))
