"""Which blueprints the persistent kernel fits, and that it finds their tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from glassformer.blueprints import blueprint, gemma3_text, gpt2, llama, mistral, qwen2, qwen3, t5
from glassformer.engine.gpu.persistent.layout import read_layout, rotation_table
from glassformer.engine.gpu.persistent.schedule import DecoderShape
from glassformer.ground.errors import ExecutorError
from glassformer.ops.rope import Rope

SIZES: dict[str, Any] = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 300,
}
OTHER_SIZES: dict[str, Any] = {"hidden_size": 96, "num_hidden_layers": 2, "vocab_size": 300}


@pytest.mark.parametrize("family", [llama, mistral, qwen2, qwen3])
def test_decoders_of_llamas_kind_fit_and_every_tensor_has_its_place(family: Any) -> None:
    plan = blueprint(family.Config(**SIZES, **({"sliding_window": None} if family is mistral else {})))
    layout = read_layout(plan)
    shape = layout.shape
    assert shape == DecoderShape(2, 256, 4, 2, 64, 512, 300, 1e-6, family is qwen3, family is qwen2) or family is mistral
    names = [layout.embedding, layout.head, *layout.norms]
    for number, layer in enumerate(layout.layers):
        names += [*layer.head_norms, *layer.qkv_biases]
        names += [name for matrix in ("qkv", "output", "gate_up", "down") for name in layout.parts(matrix, number)]
    assert sorted(names) == sorted(weight.name for weight in plan.weights)
    assert layout.parts("head", 2) == (layout.head,)


def test_a_tied_head_is_the_embedding() -> None:
    layout = read_layout(blueprint(llama.Config(**SIZES, tie_word_embeddings=True)))
    assert layout.head == layout.embedding


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (gpt2.Config(**OTHER_SIZES), "more than blocks between its ends"),
        (t5.Config(**OTHER_SIZES), "no decoder with a head"),
        (gemma3_text.Config(**SIZES, layer_types=["full_attention"] * 2), "scales its embeddings"),
        (mistral.Config(**SIZES, sliding_window=128), "look at the last 128 tokens only"),
        (llama.Config(**SIZES, hidden_act="gelu"), "MLP has gelu"),
        (llama.Config(**SIZES, mlp_bias=True), "biases in its MLP"),
        (llama.Config(**SIZES, attention_bias=True), "bias on attention's output projection"),
        (llama.Config(**SIZES, rope=Rope("dynamic", factor=2.0)), "frequencies depend on the length"),
    ],
)
def test_a_blueprint_that_does_not_fit_says_why(config: Any, reason: str) -> None:
    with pytest.raises(ExecutorError, match=reason):
        read_layout(blueprint(config))


def test_blueprints_changed_in_one_place_do_not_fit() -> None:
    plan = blueprint(llama.Config(**SIZES))

    def changed(kind: str, **options: Any) -> Any:
        number = next(i for i, op in enumerate(plan.ops) if op.kind == kind)
        op = replace(plan.ops[number], options={**plan.ops[number].options, **options})
        return replace(plan, ops=(*plan.ops[:number], op, *plan.ops[number + 1 :]))

    for other, reason in (
        (changed("norm", how="layer"), "layer norms"),
        (changed("norm", offset=1.0), "norms with an offset"),
        (changed("norm", eps=1e-3), "different epsilons"),
        (changed("rotate", rope=Rope(theta=500.0)), "different kinds of RoPE"),
        (changed("attend", scale=1.0), "scales its attention scores"),
        (changed("attend", causal=False), "not plain causal"),
        (changed("scores", scale=2.0), "a bias or a scale"),
    ):
        with pytest.raises(ExecutorError, match=reason):
            read_layout(other)


def test_the_rotation_table_has_the_cosines_and_sines_of_every_position() -> None:
    table = rotation_table(Rope(theta=100.0), 10, 4)
    angles = np.arange(10)[:, None] * np.array([1, 0.1])
    assert np.allclose(table[:, 0], np.cos(angles), atol=1e-6)
    assert np.allclose(table[:, 1], np.sin(angles), atol=1e-6)
