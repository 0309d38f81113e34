"""Adapters that do not fit, or that cannot be read: one sentence each."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.adapters.peft import compile_pattern
from glassformer.ground.errors import CheckpointError, GlassError, InputTypeError, ModelNotFound
from tests.adapters.conftest import MakeAdapter
from tests.parity import reference

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def change_config(adapter: Path, **fields: Any) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, **fields}))


def change_weights(adapter: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, adapter / "adapter_model.safetensors")


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "IA3"}, "adapters of the kind 'IA3' are not supported, only LORA. Merge it"),
    ({"peft_type": "PREFIX_TUNING"}, "adapters of the kind 'PREFIX_TUNING' are not supported"),
    ({"lora_bias": True}, "lora_bias is True, which is not supported"),
    ({"layer_replication": [[0, 1]]}, "layer_replication is"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base model too"),
    ({"r": "many"}, "r is 'many', which is of the wrong type"),
    ({"r": 8}, "has the rank 8, and it has 4"),
    ({"target_modules": "(a+)+"}, "no pattern that can be used: it has repetitions inside repetitions"),
    ({"target_modules": "("}, "no pattern that can be used"),
    ({"target_modules": ["q_proj", "up_proj"]}, "lacks lora_A and lora_B of 'model.layers.0.mlp.up_proj'"),
]


@pytest.mark.parametrize(("fields", "message"), CONFIGS)
def test_configs_that_are_refused(make_adapter: MakeAdapter, fields: dict[str, Any], message: str) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    change_config(adapter, **fields)
    with pytest.raises(CheckpointError) as raised:
        glassformer.load(base, adapter=adapter)
    assert message in str(raised.value)


WEIGHTS: list[tuple[Callable[[dict[str, torch.Tensor]], Any], str]] = [
    (lambda tensors: tensors.pop(f"{Q}.lora_B.weight"), "lacks lora_B of 'model.layers.0.self_attn.q_proj'"),
    (lambda tensors: tensors.update({f"{Q}.lora_A.weight": torch.zeros(3, 4)}), "which do not make a product"),
    (
        lambda tensors: tensors.update({f"{Q}.lora_B.weight": torch.zeros(6, 4)}),
        "its update of 'model.layers.0.self_attn.q_proj' has the shape (6, ",
    ),
    (lambda tensors: tensors.update({"base_model.model.extra.weight": torch.zeros(2)}), "holds 'extra.weight', which"),
    (
        lambda tensors: tensors.update({"base_model.model.lm_head.weight": torch.zeros(2, 2)}),
        "its 'lm_head.weight' has the shape (2, 2)",
    ),
    (lambda tensors: tensors.clear() or tensors.update(a=torch.zeros(1)), "holds no lora_A and lora_B"),  # type: ignore[func-returns-value]
]


@pytest.mark.parametrize(("change", "message"), WEIGHTS)
def test_weights_that_are_refused(
    make_adapter: MakeAdapter, change: Callable[[dict[str, torch.Tensor]], Any], message: str
) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    change_weights(adapter, change)
    with pytest.raises(CheckpointError) as raised:
        glassformer.load(base, adapter=adapter)
    assert message in str(raised.value)


def test_a_wrong_base_is_named(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    _, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    reference.write(tmp_path / "gpt2", "gpt2")
    with pytest.raises(CheckpointError, match=r"which .*gpt2 does not have\..* It was made for '.*base'\."):
        glassformer.load(tmp_path / "gpt2", adapter=adapter)
    reference.write(tmp_path / "wider", "llama", hidden_size=96)
    with pytest.raises(CheckpointError, match=r"in .*wider that matrix has"):
        glassformer.load(tmp_path / "wider", adapter=adapter)
    reference.write(tmp_path / "shorter", "llama", num_hidden_layers=1)
    with pytest.raises(CheckpointError, match="changes 'model.layers.1.self_attn.q_proj', which"):
        glassformer.load(tmp_path / "shorter", adapter=adapter)


def test_an_adapter_whose_base_is_not_here(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    shutil.rmtree(base)
    with pytest.raises(
        ModelNotFound, match=r"its base '.*' cannot be opened: .* Give the base, and the adapter with adapter="
    ):
        glassformer.load(adapter)
    change_config(adapter, base_model_name_or_path=None)
    with pytest.raises(CheckpointError, match="names no base"):
        glassformer.load(adapter)


def test_arguments_that_are_no_adapters(make_adapter: MakeAdapter, tmp_path: Path) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    for wrong in (7, [], {"a": "much"}, [3]):
        with pytest.raises(InputTypeError, match="adapter is a path"):
            glassformer.load(base, adapter=wrong)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="not an adapter"):
        glassformer.load(base, adapter=base)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no adapter_model\.safetensors or adapter_model\.bin"):
        glassformer.load(base, adapter=adapter)
    with pytest.raises(GlassError, match="nothing"):
        glassformer.load(base, adapter=tmp_path / "nothing")


def test_an_adapter_beside_is_neither_split_nor_run_by_the_gpu_engine(make_adapter: MakeAdapter) -> None:
    base, adapter, _ = make_adapter("llama", target_modules=["q_proj"])
    model = glassformer.load(base, adapter=adapter, adapter_mode="beside", executor="plain", tensor_parallel=2)
    with pytest.raises(GlassError, match="adapter_mode='beside' out"):
        _ = model.executor


@pytest.mark.parametrize(
    "pattern", [r".*\.(q|v)_proj", r"(?:.*?(?:attn|mlp).*?(?:q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.x)"]
)
def test_patterns_that_people_write_are_accepted(pattern: str) -> None:
    assert compile_pattern(pattern, Path("x")).pattern == pattern


@pytest.mark.parametrize("pattern", ["(a*)*b", "((ab)+c?)+", ".*" * 20, "(?:(?:x+)y)*", "a" * 5000])
def test_patterns_that_take_for_ever_are_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match="no pattern"):
        compile_pattern(pattern, Path("x"))
