"""Configs of encoders: what cannot be honoured is refused, older fields are read, and buckets are the reference's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from glassformer import blueprints
from glassformer.blueprints import read_config
from glassformer.ground.errors import ConfigError
from glassformer.ops.positions import DistanceBuckets
from tests.parity.configs import TINY


def tiny(family: str, **changes: Any) -> Any:
    return read_config({"model_type": family, **TINY[family], **changes})


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("albert", {"inner_group_num": 2}, "'inner_group_num' is 2; in an albert model it is 1"),
    ("albert", {"num_hidden_groups": 9}, "'num_hidden_groups' is 9, which is more than the 3 layers"),
    ("modernbert", {"layer_types": ["full_attention"]}, "'layer_types' must name one of full_attention, sliding_attention"),
    ("modernbert", {"classifier_pooling": "max"}, "'classifier_pooling' is 'max'; it must be one of cls, mean"),
    ("modernbert", {"num_attention_heads": 16}, "'hidden_size' gives heads of 3; RoPE rotates pairs"),
    ("modernbert", {"rope_parameters": 7}, "'rope_parameters' is 7; it must be an object"),
    ("deberta-v2", {"pos_att_type": ["c2c"]}, "'pos_att_type' is ['c2c']; it may list c2p and p2c"),
    ("deberta-v2", {"norm_rel_ebd": "batch"}, "'norm_rel_ebd' is 'batch'; it must be none or layer_norm"),
    (
        "deberta-v2",
        {"position_buckets": 128},
        "'position_buckets' is 128; for 64 relative positions it must be from 2 to 125",
    ),
    ("deberta-v2", {"embedding_size": 20}, "'embedding_size' is 20; other sizes than 48 are not supported"),
    ("deberta-v2", {"attention_head_size": 20}, "'attention_head_size' is 20; other sizes than 12 are not supported"),
    ("deberta-v2", {"conv_kernel_size": 3}, "'conv_kernel_size' is 3; a convolution is not supported"),
    ("deberta-v2", {"legacy": False}, "'legacy' is False; in a deberta-v2 model it is True"),
    ("mt5", {"scale_decoder_outputs": True}, "'scale_decoder_outputs' is True; in a mt5 model it is False"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_what_cannot_be_honoured_is_refused(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny(family, **changes)
    assert message in str(caught.value)


def test_hyphens_of_a_model_type_are_underscores_of_its_file() -> None:
    assert {"xlm-roberta", "deberta-v2", "gemma3_text"} <= set(blueprints.model_types())
    assert blueprints.module_for("xlm-roberta").__name__.endswith(".xlm_roberta")
    with pytest.raises(ConfigError, match="'xlm_roberta'"):
        blueprints.module_for("xlm_roberta")


def test_modernberts_older_fields() -> None:
    """As ModernBERT-base was published: one number for the pattern of layers, and a theta for each kind."""
    old = {"global_attn_every_n_layers": 2, "global_rope_theta": 7000.0, "local_rope_theta": 300.0}
    config = tiny("modernbert", **old)
    assert config.layer_types == ["full_attention", "sliding_attention"] * 2
    assert (config.rope.theta, config.local_rope.theta) == (7000.0, 300.0)
    assert [config.window(layer) for layer in range(2)] == [None, 9]
    assert read_config(config.to_dict()) == config


@pytest.mark.parametrize(("span", "furthest"), [(256, 512), (4, 16), (8, 6), (20, 13), (32, 2048)])
def test_logarithmic_buckets_are_the_references(span: int, furthest: int) -> None:
    distances = torch.arange(-furthest, furthest + 1)
    expected = make_log_bucket_position(distances, span, furthest).long().add(span).clamp(0, 2 * span - 1)
    assert np.array_equal(DistanceBuckets(span, furthest, logarithmic=True).numbers(), expected.numpy())


def test_each_distance_has_its_own_bucket_without_logarithms() -> None:
    assert DistanceBuckets(3, 3, logarithmic=False).numbers().tolist() == [0, 1, 2, 3, 4, 5, 5]
