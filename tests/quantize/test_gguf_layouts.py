"""Architectures whose GGUF files lay a model out in their own way: what we write is what llama.cpp's converter would, and
what is read of it is the same model.

The names of tensors come from the gguf package's table; what the converter does to numbers and which fields it writes is
stated here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES
from gguf.tensor_mapping import TensorNameMap, get_tensor_name_map

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import CheckpointError, InputError
from glassformer.model_files import open_model
from glassformer.quantize import quantize
from tests.checkpoint.files import refused
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import close, ids_for, load
from tests.quantize import models

pytestmark = pytest.mark.usefixtures("one_thread")

Arrays = dict[str, np.ndarray]
Converted = Iterable[tuple[str, np.ndarray]]
HEADS, GROUPS = 4, 2
FULL, STATE, NEAR = "full_attention", "linear_attention", "sliding_attention"
SMALL: dict[str, Any] = {
    "vocab_size": 448, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": None,
    "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """An architecture's file of a tiny model; `special`: what becomes of a tensor that the package's table does not say."""

    architecture: str
    family: str
    config: Mapping[str, Any]
    fields: Mapping[str, Any]  # without the architecture's name in front
    special: Callable[[str, np.ndarray], Converted | None] = lambda key, value: None
    more: Arrays = field(default_factory=dict)  # tensors that are of no weight
    read_as: str | None = None  # another family, where a file calls the model so
    head: str = "causal"


def interleaved(value: np.ndarray, heads: int) -> np.ndarray:
    return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


STATES: dict[str, Any] = {
    "mamba_n_heads": 8, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_chunk_size": 16,
}  # fmt: skip
STATE_FIELDS = {
    "ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 1,
    "attention.head_count_kv": [0, GROUPS, 0],
}  # fmt: skip


def beside_states(key: str, value: np.ndarray) -> Converted | None:
    """Queries and keys in pairs; of a state its rates, and its vectors in columns."""
    layer = (re.findall(r"\.(\d+)\.", key) or [""])[0]
    if projection := re.search(r"self_attn\.([qk])_proj\.(\w+)", key):
        heads = HEADS if projection[1] == "q" else GROUPS
        return [(f"blk.{layer}.attn_{projection[1]}.{projection[2]}", interleaved(value, heads))]
    own: Mapping[str, Converted] = {
        "mamba.A_log": [(f"blk.{layer}.ssm_a", -np.exp(value)[:, None])] if key.endswith("A_log") else [],
        "mamba.D": [(f"blk.{layer}.ssm_d", value[:, None])] if key.endswith(".D") else [],
        "mamba.dt_bias": [(f"blk.{layer}.ssm_dt.bias", value)],
        "mamba.norm.weight": [(f"blk.{layer}.ssm_norm.weight", value[None])],
        "mamba.conv1d.weight": [(f"blk.{layer}.ssm_conv1d.weight", value.squeeze())],
    }
    return own.get(".".join(key.split(".")[3:]))


def granite_hybrid(key: str, value: np.ndarray) -> Converted | None:
    layer = (re.findall(r"\.(\d+)\.", key) or [""])[0]
    if key.endswith("shared_mlp.input_linear.weight"):
        gate, up = np.split(value, 2)
        return [(f"blk.{layer}.ffn_gate_shexp.weight", gate), (f"blk.{layer}.ffn_up_shexp.weight", up)]
    if key.endswith("shared_mlp.output_linear.weight"):
        return [(f"blk.{layer}.ffn_down_shexp.weight", value)]
    return beside_states(key, value)


def without_experts(key: str, value: np.ndarray) -> Converted | None:
    found = granite_hybrid(key, value)
    return found and [(name.replace("_shexp", ""), part) for name, part in found]


MULTIPLIERS = {
    "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0,
}  # fmt: skip
MULTIPLIER_FIELDS = {"attention.scale": 0.3, "embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 2.0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 20, "shared_intermediate_size": 24}
NO_EXPERTS = {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 24, "shared_intermediate_size": 24}
GRANITE4: dict[str, Any] = {**SMALL, **STATES, **MULTIPLIERS, "layer_types": [STATE, FULL, STATE]}
LAYOUTS: dict[str, Layout] = {
    "granitehybrid": Layout(
        "granitehybrid", "granitemoehybrid", {**GRANITE4, **EXPERTS, "position_embedding_type": "nope"},
        {**STATE_FIELDS, **MULTIPLIER_FIELDS, "expert_count": 4, "expert_used_count": 2, "feed_forward_length": 20,
         "expert_shared_feed_forward_length": 24, "rope.scaling.finetuned": False},
        granite_hybrid,
    ),
    "granitehybrid without experts": Layout(
        "granitehybrid", "granitemoehybrid",
        {**GRANITE4, **NO_EXPERTS, "position_embedding_type": "rope", "attention_bias": True},
        {**STATE_FIELDS, "feed_forward_length": 24, "rope.scaling.finetuned": True, "rope.dimension_count": 16},
        without_experts,
    ),
    "granitemoe of Granite 4": Layout(
        "granitemoe", "granitemoehybrid",
        {**GRANITE4, **EXPERTS, "layer_types": [FULL] * 3, "position_embedding_type": "rope"},
        {**MULTIPLIER_FIELDS, "attention.head_count_kv": GROUPS, "expert_shared_feed_forward_length": 24}, granite_hybrid,
    ),
    "granite of Granite 4": Layout(
        "granite", "granitemoehybrid",
        {**GRANITE4, **NO_EXPERTS, "layer_types": [FULL] * 3, "position_embedding_type": "rope"},
        {**MULTIPLIER_FIELDS, "attention.head_count_kv": GROUPS, "feed_forward_length": 24}, without_experts,
        read_as="granite",
    ),
    "granitehybrid of Bamba": Layout(
        "granitehybrid", "bamba",
        {**SMALL, **STATES, "attn_layer_indices": [1], "mlp_bias": True,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        {**STATE_FIELDS, "feed_forward_length": 96, "rope.scaling.finetuned": True, "rope.dimension_count": 16},
        beside_states,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    theirs: Any
    folder: Path
    path: Path
    found: GgufCheckpoint


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """A layout's tiny model, and the file that we write of it."""

    @cache
    def make(name: str) -> Written:
        layout, folder = LAYOUTS[name], tmp_path_factory.mktemp("layout")
        theirs = reference.write(folder, layout.family, layout.head, **layout.config)
        models.byte_level(folder, "llama-bpe", False)
        path = folder / "x.gguf"
        quantize(open_model(folder), path, "F32")
        return Written(theirs, folder, path, GgufCheckpoint(path))

    return make


def name_map(architecture: str, layers: int) -> TensorNameMap:
    return get_tensor_name_map(next(arch for arch, known in MODEL_ARCH_NAMES.items() if known == architecture), layers)


def converted(layout: Layout, theirs: Any) -> Arrays:
    """The reference's tensors as the converter names and lays them out."""
    names, tensors, stacks = name_map(layout.architecture, 9), dict(layout.more), dict[str, list[np.ndarray]]()
    for key, value in reference.in_checkpoint(theirs, theirs.state_dict()).items():
        if theirs.config.tie_word_embeddings and key == "lm_head.weight":
            continue
        array = np.ascontiguousarray(value.numpy())
        one = re.sub(r"\.experts\.\d+\.", ".experts.", key)
        router = one.replace("block_sparse_moe.experts.", "mlp.experts.")  # which the table knows of other families
        known = names.get_name(one, (".weight", ".bias")) or names.get_name(router, (".weight", ".bias"))
        parts = layout.special(key, array)
        for name, part in [(known, array)] if parts is None else parts:
            assert name is not None, key
            stacks.setdefault(name, []).append(part) if "_exps." in name else tensors.update({name: part})
    return tensors | {name: np.stack(arrays) for name, arrays in stacks.items()}


@pytest.mark.parametrize("name", LAYOUTS)
class TestLayouts:
    def test_tensors_are_those_of_the_converter(self, name: str, written: Callable[[str], Written]) -> None:
        layout, made = LAYOUTS[name], written(name)
        expected = converted(layout, made.theirs)
        assert {*made.found.raw} == {*expected}
        for key, value in expected.items():
            stored = made.found.raw[key]
            assert stored.shape == value.shape, key
            assert np.allclose(stored.to_float32(), value, rtol=1e-6), key

    def test_fields_are_those_of_the_converter(self, name: str, written: Callable[[str], Written]) -> None:
        layout, metadata = LAYOUTS[name], written(name).found.metadata
        assert metadata["general.architecture"] == layout.architecture
        for key, value in layout.fields.items():
            typed = pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
            assert metadata[f"{layout.architecture}.{key}"] == typed, key

    @torch.no_grad()
    def test_a_file_is_the_same_model(self, name: str, written: Callable[[str], Written]) -> None:
        layout, made = LAYOUTS[name], written(name)
        ours, ids = load(made.path, layout.head), ids_for(made.theirs, 2, 60)
        assert ours.config.model_type == (layout.read_as or layout.family)
        close(ours(input_ids=ids)[0], made.theirs(input_ids=ids)[0], 1e-5)
        subject = Subject(made.path)
        assert subject.verdict(subject.cpu()).agrees(1e-5)

    @torch.no_grad()
    def test_quantized_is_nearly_the_same_model(self, name: str, written: Callable[[str], Written], tmp_path: Path) -> None:
        """Rows are packed as the file has them, and what is one matrix to us is packed, too."""
        made = written(name)
        quantize(open_model(made.folder), tmp_path / "x.gguf", "Q8_0")
        ours, ids = load(tmp_path / "x.gguf", LAYOUTS[name].head), ids_for(made.theirs, 2, 20)
        close(ours(input_ids=ids)[0], made.theirs(input_ids=ids)[0], 0.05)
        matrices = [stored for stored in GgufCheckpoint(tmp_path / "x.gguf").tensors.values() if stored.kind == "Q8_0"]
        assert len(matrices) > 8


def test_parts_of_a_matrix_that_do_not_fit_are_refused(written: Callable[[str], Written], tmp_path: Path) -> None:
    path, raw = written("granitehybrid").path, GgufCheckpoint(written("granitehybrid").path)
    data = path.read_bytes().replace(b"blk.1.ffn_up_shexp.weight", b"blk.1.ffn_up_shexq.weight")
    (tmp_path / "x.gguf").write_bytes(data)
    assert "blk.1.ffn_gate_shexp.weight" in raw.raw
    words = "GGUF tensors blk.1.ffn_gate_shexp.weight and blk.1.ffn_up_shexp.weight do not fit together"
    refused(lambda: GgufCheckpoint(tmp_path / "x.gguf").tensors, words, kind=CheckpointError)


NOT_SAID: dict[str, tuple[str, dict[str, Any], str]] = {  # a layout, changes to its config, and the refusal
    "groups that are normed together": (
        "granitehybrid", {"mamba_n_groups": 2}, "GGUF's readers norm each group of a state's heads by itself, and a "
        "granitemoehybrid model all 2 groups together.",
    ),
    "biases of a state's projections": (
        "granitehybrid", {"mamba_proj_bias": True}, "no place for the projection biases of a granitemoehybrid model",
    ),
    "attention without positions alone": (
        "granite of Granite 4", {"position_embedding_type": "nope"},
        "no place for a granitemoehybrid model without states and positions",
    ),
    "heads that are partly rotated": (
        "granitehybrid of Bamba", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "GGUF's readers take other pairs of a bamba model's heads that are partly rotated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_SAID)
def test_what_gguf_cannot_say_is_refused(what: str, tmp_path: Path) -> None:
    name, changes, words = NOT_SAID[what]
    layout = LAYOUTS[name]
    reference.write(tmp_path, layout.family, layout.head, **{**layout.config, **changes})
    models.byte_level(tmp_path, "llama-bpe", False)
    refused(lambda: quantize(open_model(tmp_path), tmp_path / "x.gguf", "F32"), words, kind=InputError)
