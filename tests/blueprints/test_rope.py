"""RoPE's frequencies of every kind, against the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from glassformer.blueprints import Rope
from tests.parity import reference


@pytest.mark.parametrize("size", [8, 64, 128])
@pytest.mark.parametrize("rope", [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7,
     "mscale_all_dim": 1.2},
    *reference.ROPES,
])  # fmt: skip
def test_rope_frequencies_equal_the_reference(rope: dict[str, Any], size: int) -> None:
    config = reference.config("llama", rope_parameters=rope, head_dim=size)
    ours = Rope.read({"rope_parameters": rope, "max_position_embeddings": 256})
    if ours.kind == "default":
        expected = 1.0 / ours.theta ** (torch.arange(0, size, 2) / size)
    else:
        expected, scale = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu")
        assert ours.scale == pytest.approx(scale)
    assert np.allclose(ours.frequencies(size), expected.numpy(), rtol=1e-5)
    if ours.kind == "dynamic":
        longer, _ = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu", seq_len=700)
        assert np.allclose(ours.frequencies(size, 700), longer.numpy(), rtol=1e-5)
    assert Rope.read({"rope_parameters": ours.raw(), "max_position_embeddings": 256}) == ours
