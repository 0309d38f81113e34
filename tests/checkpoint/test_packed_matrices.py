"""Matrices in 8 bits: half a step from what they were, and refused where they are not what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import save_file

from glassformer.checkpoint.folder import pack_matrices, read_safetensors, unpack_matrices
from glassformer.ground.errors import CheckpointError

NUMBERS = st.floats(-1e6, 1e6, width=32)


def through_a_file(tensors: dict[str, Any], path: Path) -> dict[str, Any]:
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    return unpack_matrices(read_safetensors(path), path)


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=NUMBERS))
def test_each_number_is_at_most_half_a_step_away(matrix: Any) -> None:
    packed = pack_matrices({"matrix": matrix})
    scale = packed["matrix.scale"]
    assert packed["matrix"].dtype == np.int8
    assert (np.abs(packed["matrix"] * scale - matrix) <= scale * 0.5001).all()


def test_what_is_no_matrix_stays_as_it_is(tmp_path: Path) -> None:
    tensors = {"bias": np.array([1e-9, 3], np.float32), "matrix": np.diag([0, 1.27, -1e-3]).astype(np.float32)}
    read = through_a_file(pack_matrices(tensors), tmp_path / "x.safetensors")
    np.testing.assert_array_equal(read["bias"], tensors["bias"])
    np.testing.assert_allclose(read["matrix"], tensors["matrix"], rtol=1e-6)  # each row has one number, and so its own scale
    assert read.keys() == tensors.keys()


@pytest.mark.parametrize(
    "tensors",
    [
        {"matrix": np.ones((2, 3), np.int8), "matrix.scale": np.ones((3, 2), np.float32)},
        {"matrix": np.ones((2, 3), np.int8), "matrix.scale": np.ones(3, np.float32)},
        {"matrix": np.ones((2, 3), np.float32), "matrix.scale": np.ones((2, 1), np.float32)},
        {"matrix": np.ones(3, np.int8), "matrix.scale": np.ones((3, 1), np.float32)},
        {"matrix": np.ones((2, 3), np.int8)},
    ],
    ids=["shape", "vector", "float", "no matrix", "no scales"],
)
def test_what_is_not_packed_as_it_says_is_refused(tensors: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="matrix"):
        through_a_file(tensors, tmp_path / "x.safetensors")
