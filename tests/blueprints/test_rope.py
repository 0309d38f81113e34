"""RoPE's frequencies of every kind, against the reference's."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from glassformer.blueprints import Rope, read_config
from glassformer.ground.errors import ConfigError
from tests.parity import reference


def longrope_factors(size: int) -> dict[str, list[float]]:
    return {
        "short_factor": np.linspace(1.0, 1.5, size // 2).tolist(),
        "long_factor": np.linspace(1.2, 9.0, size // 2).tolist(),
    }


@pytest.mark.parametrize("size", [8, 64, 128])
@pytest.mark.parametrize("rope", [
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "mscale": 0.7,
     "mscale_all_dim": 1.2},
    {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64},
    {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, "factor": 3.0},
    {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, "attention_factor": 1.3},
    *reference.ROPES,
])  # fmt: skip
def test_rope_frequencies_equal_the_reference(rope: dict[str, Any], size: int) -> None:
    if rope["rope_type"] == "longrope":
        rope = {**rope, **longrope_factors(size)}
    config = reference.config("llama", rope_parameters=rope, head_dim=size)
    ours = Rope.read({"rope_parameters": rope, "max_position_embeddings": 256})
    if ours.kind == "default":
        expected = 1.0 / ours.theta ** (torch.arange(0, size, 2) / size)
    else:
        expected, scale = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu")
        assert ours.scale == pytest.approx(scale)
    assert np.allclose(ours.frequencies(size), expected.numpy(), rtol=1e-5)
    if ours.depends_on_length:
        longer, _ = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu", seq_len=700)
        assert np.allclose(ours.frequencies(size, 700), longer.numpy(), rtol=1e-5)
    assert Rope.read({"rope_parameters": ours.raw(), "max_position_embeddings": 256}) == ours


def test_longrope_under_its_former_name_and_with_the_trained_length_beside_it() -> None:
    rope = {"type": "su", **longrope_factors(8)}
    ours = Rope.read({"rope_scaling": rope, "max_position_embeddings": 256, "original_max_position_embeddings": 64})
    assert (ours.kind, ours.original_max_position_embeddings, ours.factor) == ("longrope", 64, 4.0)


@pytest.mark.parametrize(("change", "message"), [
    ({"short_factor": None}, "'short_factor' is None; RoPE needs a list of numbers there"),
    ({"long_factor": [1.0, 2.0, 3.0, "4"]}, "'long_factor' is '4'; RoPE needs a positive number"),
    ({"long_factor": [1.0, 2.0, 3.0, float("nan")]}, "'long_factor' is nan; RoPE needs a positive number"),
    ({"long_factor": [1.0] * 5}, "'long_factor' lists 5 numbers; RoPE needs one for each of the 6 pairs of a head"),
    ({"original_max_position_embeddings": 0}, "'original_max_position_embeddings' is 0; RoPE needs a positive number"),
])  # fmt: skip
def test_longrope_that_is_incomplete_is_refused(change: dict[str, Any], message: str) -> None:
    raw = {**reference.TINY["llama"], "model_type": "llama"}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64, **longrope_factors(12), **change}
    with pytest.raises(ConfigError, match=message):
        read_config({**raw, "rope_parameters": rope})


def test_a_share_of_one_is_written_where_a_reader_would_take_another() -> None:
    """GPT-NeoX rotates a quarter of each head unless its config says otherwise."""
    sizes = {"model_type": "gpt_neox", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "vocab_size": 50}
    whole = read_config(
        {**sizes, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 1.0}}
    )
    assert whole.to_dict()["rope_parameters"]["partial_rotary_factor"] == 1.0
    assert read_config(whole.to_dict()).rope == whole.rope
    assert read_config(sizes).rope.partial_rotary_factor == 0.25


LINEAR, DEFAULT = {"rope_type": "linear", "factor": 4.0, "rope_theta": 2e4}, {"rope_type": "default", "rope_theta": 3e4}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 7e4}
NESTED = {"full_attention": LINEAR, "sliding_attention": DEFAULT}


@pytest.mark.parametrize("family", ["olmo3", "gemma3_text", "modernbert"])
@pytest.mark.parametrize(
    "raw",
    [
        {"rope_parameters": {**YARN, **NESTED}},
        {"rope_parameters": {**YARN, "sliding_attention": DEFAULT}},
        {"rope_parameters": {"rope_theta": 1e3, "full_attention": {"rope_type": "linear", "factor": 4.0}}},
        {"rope_theta": 9e3, "rope_parameters": NESTED},
        {"rope_theta": 9e3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": NESTED},
        {"rope_theta": 9e3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
    ids=["flat and nested", "one nested", "a flat base", "an older base", "older scaling", "older alone"],
)
def test_nested_rope_parameters_win_over_flat_ones(family: str, raw: dict[str, Any]) -> None:
    from transformers import AutoConfig

    sizes = {"num_hidden_layers": 6, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8}
    if family == "modernbert" and not raw.get("rope_parameters", {}).keys() <= NESTED.keys():
        return  # the reference refuses them
    theirs = AutoConfig.for_model(family, **sizes, **copy.deepcopy(raw)).rope_parameters
    before = copy.deepcopy(raw)
    ours = read_config({"model_type": family, "vocab_size": 99, "intermediate_size": 64, **sizes, **raw})
    assert raw == before
    for mine, kind in ((ours.rope, "full_attention"), (ours.local_rope, "sliding_attention")):
        assert (mine.kind, mine.theta) == (theirs[kind]["rope_type"], theirs[kind]["rope_theta"])
        assert mine.factor == theirs[kind].get("factor", 1.0)
