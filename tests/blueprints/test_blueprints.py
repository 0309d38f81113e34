"""Blueprints: plain data that needs no torch; true sizes of real models."""

from __future__ import annotations

from typing import Any

import pytest

from glassformer import blueprints
from glassformer.blueprints import blueprint, read_config

QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True, "rope_theta": 1e6,
}  # fmt: skip


def test_model_types_are_found_by_file_name() -> None:
    assert {"llama", "mistral", "qwen2", "qwen3"} <= set(blueprints.model_types())
    assert blueprints.module_for("qwen3").Config.model_type == "qwen3"


def test_qwen3_has_its_published_parameter_count() -> None:
    drawn = blueprint(read_config(QWEN3))
    assert drawn.parameters == 596_049_920
    assert len(drawn.weights) == 310
    assert drawn.sites["scores"] == ("batch", "length", 151936)
    untied = blueprint(read_config({**QWEN3, "tie_word_embeddings": False}))
    assert untied.parameters - drawn.parameters == 151936 * 1024
    assert untied.weights[-1].name == "lm_head.weight"


def test_every_op_reads_earlier_ops() -> None:
    """Each op reads only what came before, and everything but the end is read."""
    drawn = blueprint(read_config(QWEN3), "sequence")
    read = {number for op in drawn.ops for number in op.inputs}
    for number, op in enumerate(drawn.ops):
        assert all(other < number for other in op.inputs)
        assert bool(op.inputs) == (op.kind != "embed")
    assert read == set(range(len(drawn.ops) - 1))
    assert [op.kind for op in drawn.ops[-2:]] == ["pool", "scores"]
    assert drawn.ops[-1].shape == ("batch", 1, 2)
    assert {op.block for op in drawn.ops} == {None, *range(28)}


def test_windows_are_options_of_attention() -> None:
    drawn = blueprint(read_config({**QWEN3, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 20}))
    windows = [op.options["window"] for op in drawn.ops if op.kind == "attend"]
    assert windows == [None] * 20 + [64] * 8
    typed = {**QWEN3, "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 9}
    typed["layer_types"] = ["sliding_attention", "full_attention"]
    assert [op.options["window"] for op in blueprint(read_config(typed)).ops if op.kind == "attend"] == [9, None]


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_a_config_is_read_back_from_its_dict(name: str) -> None:
    config = read_config({**QWEN3, "model_type": name, "id2label": {"0": "no", "1": "yes"}, "odd": 3})
    again = read_config(config.to_dict())
    assert again == config
    assert again.num_labels == 2
    assert again.extra_fields["odd"] == 3


@pytest.mark.parametrize("count", [50, 2, 3, 1])
def test_a_number_of_labels_wins_over_names_that_were_left_over(count: int) -> None:
    from transformers import BertConfig

    raw = {"num_labels": count, "id2label": {"0": "no", "1": "yes"}}
    theirs, ours = BertConfig.from_dict(dict(raw)), read_config({**BertConfig().to_dict(), **raw})
    assert (ours.num_labels, ours.label_count, ours.id2label) == (theirs.num_labels, count, theirs.id2label)
