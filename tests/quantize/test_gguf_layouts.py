"""Architectures whose GGUF files lay a model out in their own way: what we write is what llama.cpp's converter would, and
what is read of it is the same model.

The names of tensors come from the gguf package's table; what the converter does to numbers and which fields it writes is
stated here.
"""

from __future__ import annotations

import json
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
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import CheckpointError, InputError
from glassformer.model_files import open_model
from glassformer.quantize import quantize
from tests.checkpoint.files import refused
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import close, ids_for, load, share_of_rounding
from tests.quantize import models
from tests.text.models import GEMMA as GEMMA_PIECES

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
    finish: Callable[[Arrays], Arrays] = lambda tensors: tensors
    more: Arrays = field(default_factory=dict)  # tensors that are of no weight
    read_as: str | None = None  # another family, where a file calls the model so
    head: str = "causal"
    share: float = 0.0  # by which the engines may differ at least: a neuron that is shut or not is a step
    tokenizer: Callable[[Path], None] = lambda folder: models.byte_level(folder, "llama-bpe", False)


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


def in_pairs(key: str, value: np.ndarray) -> Converted | None:
    return beside_states(key, value) if "self_attn" in key else None


def without_numbers(key: str, value: np.ndarray) -> Converted | None:
    return [] if ".act_fn." in key else None  # which are fields


def gemma4(key: str, value: np.ndarray) -> Converted | None:
    layer = (re.findall(r"\.(\d+)\.", key) or [""])[0]
    scales = {"router.scale": "ffn_gate_inp.scale", "per_expert_scale": "ffn_down_exps.scale"}
    for ending, name in {**scales, "layer_scalar": "layer_output_scale.weight"}.items():
        if key.endswith(ending):
            return [(f"blk.{layer}.{name}", value)]
    expert = re.search(r"experts\.\d+\.(gate|up|down)_proj", key)
    return [(f"blk.{layer}.ffn_{expert[1]}_exps.weight", value)] if expert else None


def fused_experts(tensors: Arrays) -> Arrays:
    """An expert's gate, and then its other half."""
    found = dict(tensors)
    for name in [name for name in tensors if "ffn_gate_exps" in name]:
        both = found.pop(name), found.pop(name.replace("gate", "up"))
        found[name.replace("gate", "gate_up")] = np.concatenate(both, 1)
    return found


def gemma3n(key: str, value: np.ndarray) -> Converted | None:
    layer = (re.findall(r"\.(\d+)\.", key) or [""])[0]
    if found := re.search(r"altup_(unembed_)?projections\.", key):
        return [(f"altup_{'unembd_' if found[1] else ''}proj.weight", value)]
    if "embed_tokens_per_layer" in key:
        return [("per_layer_token_embd.weight", np.concatenate([value, np.repeat(value[:1], 8, 0)]))]  # which others have
    return [(f"blk.{layer}.altup_correct_scale.weight", value)] if key.endswith("correct_output_scale") else None


def falcon(groups: int) -> Callable[[str, np.ndarray], Converted | None]:
    """All queries, all keys, all values; norms of both parts by the newer files' names."""

    def special(key: str, value: np.ndarray) -> Converted | None:
        layer = (re.findall(r"\.(\d+)\.", key) or [""])[0]
        if not key.endswith("query_key_value.weight"):
            return None
        parts = value.reshape(groups, HEADS // groups + 2, -1, value.shape[1])
        ordered = (parts[:, :-2], parts[:, -2], parts[:, -1])
        return [(f"blk.{layer}.attn_qkv.weight", np.concatenate([part.reshape(-1, value.shape[1]) for part in ordered]))]

    return special


def gemma_pieces(folder: Path) -> None:
    models.pieces(folder, "GemmaTokenizer", GEMMA_PIECES)


EAGER = {"experts_implementation": "eager"}  # which computes in any type


def without_pooler(key: str, value: np.ndarray) -> Converted | None:
    return [] if "pooler" in key else None


def nomic(key: str, value: np.ndarray) -> Converted | None:
    """By the names of its authors' own files, which the package's table has."""
    layer = (re.findall(r"layers\.(\d+)\.", key) or [""])[0]
    names = {
        "post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm", "self_attn.o_proj":
        "attn_output", **{f"self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
        **{f"mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
    }  # fmt: skip
    found = [name for ours, name in names.items() if f".{layer}.{ours}." in key]
    return [(f"blk.{layer}.{found[0]}.{key.rpartition('.')[2]}", value)] if found else without_pooler(key, value)


def fused_attention(tensors: Arrays) -> Arrays:
    """All queries, and then all keys and all values."""
    found = dict(tensors)
    for name in [name for name in tensors if ".attn_q." in name]:
        parts = [found.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return found


def bert_words(folder: Path) -> None:
    """WordPiece of a few letters and their pairs."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        "the",
        "##ing",
        "1",
    ]
    backend = Tokenizer(WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    backend.add_special_tokens(words[:5])
    backend.save(str(folder / "tokenizer.json"))
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, "tokenizer_class": "BertTokenizer"}))


ENCODER: dict[str, Any] = {
    "vocab_size": 448, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": HEADS,
    "max_position_embeddings": 128, "type_vocab_size": 2, "layer_norm_eps": 1e-4, "pad_token_id": 0,
}  # fmt: skip
FALCON: dict[str, Any] = {
    "vocab_size": 448, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": HEADS, "tie_word_embeddings": True,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": None, "alibi": False, "bias": False, "parallel_attn": True,
    "ffn_hidden_size": 256,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 8, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
}  # fmt: skip
LLAMA4: dict[str, Any] = {
    **SMALL, **EAGER, "num_hidden_layers": 4, "head_dim": 16, "intermediate_size": 32, "intermediate_size_mlp": 96,
    "num_local_experts": 4, "num_experts_per_tok": 2, "attention_chunk_size": 8192, "layer_types": None, "moe_layers": None,
    "no_rope_layers": None,
}  # fmt: skip
GEMMA = {**EAGER, "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0}
MULTIPLIERS = {
    "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0,
}  # fmt: skip
MULTIPLIER_FIELDS = {"attention.scale": 0.3, "embedding_scale": 3.0, "residual_scale": 0.6, "logit_scale": 2.0}
EXPERTS = {
    **EAGER,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "intermediate_size": 20,
    "shared_intermediate_size": 24,
}
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
    "cohere2": Layout(
        "cohere2", "cohere2",
        {**SMALL, "num_hidden_layers": 4, "tie_word_embeddings": True, "sliding_window": 5, "logit_scale": 0.3,
         "layer_types": [NEAR, FULL] * 2},
        {"attention.sliding_window": 5, "attention.sliding_window_pattern": 2, "logit_scale": 0.3},
    ),
    "cohere2 of usual layers": Layout(
        "cohere2", "cohere2",
        {**SMALL, "num_hidden_layers": 5, "tie_word_embeddings": True, "sliding_window": 5, "layer_types": None},
        {"attention.sliding_window": 5, "block_count": 5},
    ),
    "mistral3": Layout(
        "mistral3", "ministral3", {**SMALL, "head_dim": 16, "rope_parameters": YARN},
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 8,
         "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.3},
        in_pairs,
    ),
    "llama4": Layout(
        "llama4", "llama4_text",
        {**LLAMA4, "interleave_moe_layer_step": 2},
        {"feed_forward_length": 96, "expert_feed_forward_length": 32, "interleave_moe_layer_step": 2, "expert_count": 4,
         "expert_used_count": 2},
    ),
    "llama4 that knows positions by steps": Layout(
        "llama4", "llama4_text",
        {**LLAMA4, "interleave_moe_layer_step": 1, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192}},
        {"interleave_moe_layer_step": 1}, more={"rope_freqs.weight": np.array([1.0] * 5 + [16.0] * 3, np.float32)},
    ),
    "apertus": Layout(
        "apertus", "apertus", {**SMALL, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, {}, without_numbers,
    ),
    "apertus of long texts": Layout(
        "apertus", "apertus",
        {**SMALL, "head_dim": 16, "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192}},
        {}, without_numbers, more={"rope_freqs.weight": np.array([1, 1, 1, 1, 2.6945298, 8, 8, 8], np.float32)},
    ),
    "gemma4": Layout(
        "gemma4", "gemma4_text",
        {**SMALL, **GEMMA, "num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "num_kv_shared_layers": 0,
         "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 448, "sliding_window": 5,
         "layer_types": [NEAR, FULL] * 2, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
         "moe_intermediate_size": 24, "rope_parameters": {
             NEAR: {"rope_type": "default", "rope_theta": 1e4},
             FULL: {"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": 0.25}}},
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 24}, gemma4, fused_experts,
        more={"rope_freqs.weight": np.array([1.0] * 4 + [1e30] * 12, np.float32)}, tokenizer=gemma_pieces,
    ),
    **{
        f"falcon of {what}": Layout(
            "falcon", "falcon", {**FALCON, **own}, {"attention.head_count_kv": groups, "feed_forward_length": 256},
            falcon(groups),
        )
        for what, groups, own in (
            ("one group", 1, {"new_decoder_architecture": False, "multi_query": True}),
            ("a group for each head", HEADS, {
                "new_decoder_architecture": False, "multi_query": False, "num_kv_heads": HEADS,
            }),
            ("two norms", GROUPS, {"new_decoder_architecture": True, "num_kv_heads": GROUPS}),
            ("one norm", GROUPS, {
                "new_decoder_architecture": True, "num_kv_heads": GROUPS, "num_ln_in_parallel_attn": 1,
            }),
        )
    },
    "bert": Layout(
        "bert", "bert", ENCODER, {"attention.causal": False, "attention.layer_norm_epsilon": 1e-4, "context_length": 128},
        without_pooler, tokenizer=bert_words, head="base",
    ),
    "nomic-bert": Layout(
        "nomic-bert", "nomic_bert",
        {**ENCODER, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"attention.causal": False, "rope.freq_base": 500.0, "rope.dimension_count": 16}, nomic, fused_attention,
        tokenizer=bert_words, head="base",
    ),
    "gemma3n": Layout(
        "gemma3n", "gemma3n_text",
        {**SMALL, **GEMMA, "num_hidden_layers": 22, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 24,
         "vocab_size_per_layer_input": 440, "sliding_window": 5, "altup_num_inputs": 4, "laurel_rank": 12, "head_dim": 16,
         "activation_sparsity_pattern": [0.95] * 10 + [0.0] * 12, "final_logit_softcapping": 30.0, "layer_types": None},
        {"altup.active_idx": 0, "altup.num_inputs": 4, "attention.shared_kv_layers": 2,
         "activation_sparsity_scale": pytest.approx([1.6448536] * 10 + [-np.inf] * 12),
         "attention.sliding_window_pattern": [True, True, True, True, False] * 4 + [True, True]},
        gemma3n, more={f"blk.{layer}.{name}.weight": np.zeros(shape, np.float32) for layer in (20, 21) for name, shape in (
            ("attn_k", (32, 64)), ("attn_v", (32, 64)), ("attn_k_norm", (16,)))},  # which nothing reads
        tokenizer=gemma_pieces, share=0.05,
    ),
}  # fmt: skip


MATRICES = r"(?<!router\.)(proj|linear|dense|query_key_value)"


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
        layout.tokenizer(folder)
        path = folder / "x.gguf"
        quantize(open_model(folder), path, "F32")
        return Written(theirs, folder, path, GgufCheckpoint(path))

    return make


@torch.no_grad()
def rounding(theirs: Any, ids: torch.Tensor) -> float:
    """How far a model's own rounding carries."""
    return share_of_rounding(theirs, input_ids=ids)


def name_map(architecture: str, layers: int) -> TensorNameMap:
    return get_tensor_name_map(next(arch for arch, known in MODEL_ARCH_NAMES.items() if known == architecture), layers)


def converted(layout: Layout, theirs: Any) -> Arrays:
    """The reference's tensors as the converter names and lays them out."""
    names, found = name_map(layout.architecture, 30), dict[str, list[np.ndarray]]()
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
            found.setdefault(name, []).append(part)
    tensors = {name: np.stack(arrays) if len(arrays) > 1 else arrays[0] for name, arrays in found.items()}
    return layout.finish(tensors) | layout.more


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
        close(ours(input_ids=ids)[0], load(made.folder, layout.head)(input_ids=ids)[0], 1e-5)
        close(ours(input_ids=ids)[0], made.theirs(input_ids=ids)[0], share := max(1e-5, rounding(made.theirs, ids)))
        if layout.head == "causal":
            subject = Subject(made.path)
            assert subject.verdict(subject.cpu()).agrees(max(2 * share, layout.share))  # both round

    @torch.no_grad()
    def test_packed_weights_stay_packed(self, name: str, written: Callable[[str], Written], tmp_path: Path) -> None:
        """Rows are packed as the file has them; what is one matrix to us and several to a file is packed, too."""
        made = written(name)
        quantize(open_model(made.folder), tmp_path / "x.gguf", "Q8_0")
        packed, plain = GgufCheckpoint(tmp_path / "x.gguf").tensors, made.found.tensors
        assert packed.keys() == plain.keys()
        for key, stored in packed.items():
            wanted = plain[key].to_float32()
            assert np.abs(stored.to_float32() - wanted).max() <= 0.01 * np.abs(wanted).max(), key
        kinds = {key: stored.kind for key, stored in packed.items() if len(stored.shape) == 2 and stored.shape[1] % 32 == 0}
        assert list(kinds.values()).count("Q8_0") > 8
        assert {kind for key, kind in kinds.items() if re.search(MATRICES, key)} == {"Q8_0"}


@pytest.mark.parametrize("name", ["bert", "nomic-bert"])
def test_the_words_of_bert_are_written(name: str, written: Callable[[str], Written]) -> None:
    """Pieces that begin a word are marked in a file, those that go on are not, and what stands in brackets is as it is."""
    made = written(name)
    tokens = made.found.metadata["tokenizer.ggml.tokens"]
    assert (tokens[0], tokens[5], tokens[31], tokens[57]) == ("[PAD]", "▁a", "a", "▁the")
    assert made.found.metadata["tokenizer.ggml.token_type_count"] == 2
    one, other = (open_model(path).tokenizer for path in (made.folder, made.path))
    text = "The naïve singing of THE thing 1"
    assert other(text)["input_ids"] == one(text)["input_ids"]
    assert other.decode(other(text)["input_ids"]) == one.decode(one(text)["input_ids"])


def test_parts_of_a_matrix_that_do_not_fit_are_refused(written: Callable[[str], Written], tmp_path: Path) -> None:
    path, raw = written("granitehybrid").path, GgufCheckpoint(written("granitehybrid").path)
    data = path.read_bytes().replace(b"blk.1.ffn_up_shexp.weight", b"blk.1.ffn_up_shexq.weight")
    (tmp_path / "x.gguf").write_bytes(data)
    assert "blk.1.ffn_gate_shexp.weight" in raw.raw
    words = "GGUF tensors blk.1.ffn_gate_shexp.weight and blk.1.ffn_up_shexp.weight do not fit together"
    refused(lambda: GgufCheckpoint(tmp_path / "x.gguf").tensors, words, kind=CheckpointError)


def test_rows_of_no_heads_are_refused(written: Callable[[str], Written], tmp_path: Path) -> None:
    path = written("nomic-bert").path
    data = path.read_bytes().replace(
        b"attention.head_count\x04\x00\x00\x00\x04", b"attention.head_count\x04\x00\x00\x00\x05"
    )
    (tmp_path / "x.gguf").write_bytes(data)
    words = "'blk.0.attn_qkv.weight' has 192 rows, which are no queries, keys and values of 5 heads"
    refused(lambda: GgufCheckpoint(tmp_path / "x.gguf").tensors, words, kind=CheckpointError)


def test_numbers_of_layers_that_are_not_listed_are_refused(written: Callable[[str], Written], tmp_path: Path) -> None:
    data = written("apertus").path.read_bytes().replace(b"xielu.alpha_n", b"xielu.alpha_m")
    (tmp_path / "x.gguf").write_bytes(data)
    words = "GGUF field 'xielu.alpha_n' must list a number for each of 3 layers"
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
    "few blocks that make keys": (
        "gemma3n", {"num_kv_shared_layers": 3}, "take num_kv_shared_layers=2 of a gemma3n_text model of 22 layers, not 3.",
    ),
    "chunks of another size": ("llama4", {"attention_chunk_size": 7}, "GGUF has no field for chunk=7"),
    "distances in place of RoPE": ("falcon of one group", {"alibi": True}, "GGUF has a place for falcon models with RoPE"),
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
    layout.tokenizer(tmp_path)
    refused(lambda: quantize(open_model(tmp_path), tmp_path / "x.gguf", "F32"), words, kind=InputError)
