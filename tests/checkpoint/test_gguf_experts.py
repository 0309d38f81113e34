"""GGUF files of mixtures of experts, as llama.cpp's converter lays them out: stacked experts, a router, sinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf import GGUFValueType as Value
from gguf.quants import dequantize, quantize

from glassformer.checkpoint.gguf import GgufCheckpoint
from glassformer.ground.errors import CheckpointError, InputError
from glassformer.model_files import open_model
from glassformer.quantize.export import model_contents
from tests.checkpoint.files import Typed, write_gguf
from tests.engine.executors import Subject
from tests.parity import reference
from tests.parity.compare import close, ids_for, load

pytestmark = pytest.mark.usefixtures("one_thread")

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts_per_tok": 2,
}  # fmt: skip
GROUPED: dict[str, Any] = {
    "n_routed_experts": 4, "moe_intermediate_size": 32, "n_shared_experts": 2, "n_group": 2, "topk_group": 1,
    "routed_scaling_factor": 1.5, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **SIZES, **GROUPED, "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}  # fmt: skip
GROUPED_COUNTS = {
    "expert_shared_count": 2, "leading_dense_block_count": 1, "expert_group_count": 2, "expert_group_used_count": 1,
    "expert_gating_func": 2,
}  # fmt: skip
LATENT_LENGTHS = {
    "attention.kv_lora_rank": 24, "attention.key_length": 20, "attention.value_length": 10, "rope.dimension_count": 8,
    "attention.head_count_kv": 4,
}  # fmt: skip
REMEMBERED = {"key_length": 32, "value_length": 24, "head_count_kv": 1, "key_length_mla": 20, "value_length_mla": 10}
KIMI = {
    **{f"attention.{what}": size for what, size in REMEMBERED.items()}, "attention.kv_lora_rank": 24, "block_count": 3,
    "rope.dimension_count": 8, "ssm.conv_kernel": 4, "kda.head_dim": 8,
}  # fmt: skip
DELTA = {
    "full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": 8, "ssm.group_count": 2,
    "ssm.time_step_rank": 6, "ssm.inner_size": 72,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {  # architecture, family, config
    "mixtral": ("llama", "mixtral", {**SIZES, "num_local_experts": 4, "head_dim": 16}),
    "qwen3moe": ("qwen3moe", "qwen3_moe", {
        **SIZES, "num_experts": 4, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 16,
        "mlp_only_layers": [],
    }),
    "qwen2moe": ("qwen2moe", "qwen2_moe", {
        **SIZES, "num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48,
        "mlp_only_layers": [],
    }),
    "olmoe": ("olmoe", "olmoe", {**SIZES, "num_experts": 4, "clip_qkv": None}),
    "granitemoe": ("granitemoe", "granitemoe", {
        **SIZES, "head_dim": 16, "num_local_experts": 4, "embedding_multiplier": 6.0, "attention_multiplier": 0.25,
        "residual_multiplier": 0.5, "logits_scaling": 3.0,
    }),
    "gpt-oss": ("gpt-oss", "gpt_oss", {**SIZES, "num_local_experts": 4, "head_dim": 16, "sliding_window": 4,
                                       "swiglu_limit": 7.0}),
    "deepseek2": ("deepseek2", "deepseek_v2", {
        **LATENT, "q_lora_rank": None, "topk_method": "group_limited_greedy", "rope_parameters": {"rope_theta": 1e4},
    }),
    "deepseek2 sigmoid": ("deepseek2", "deepseek_v3", {
        **LATENT, "q_lora_rank": 40, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7,
            "mscale_all_dim": 0.7,
        },
    }),
    "minimax-m2": ("minimax-m2", "minimax_m2", {
        **SIZES, "num_local_experts": 4, "head_dim": 16,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }),
    "ernie4_5-moe": ("ernie4_5-moe", "ernie4_5_moe", {
        **{name: size for name, size in SIZES.items() if name != "num_experts_per_tok"}, "moe_num_experts": 4,
        "moe_k": 2, "head_dim": 16, "moe_intermediate_size": 32, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
        "tie_word_embeddings": False,
    }),
    "lfm2moe": ("lfm2moe", "lfm2_moe", {
        **SIZES, "num_experts": 4, "moe_intermediate_size": 32, "num_dense_layers": 1, "tie_word_embeddings": False,
        "layer_types": ["conv", "full_attention"],
    }),
    "qwen3next": ("qwen3next", "qwen3_next", {
        **SIZES, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "num_experts": 4,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 48, "norm_topk_prob": True, "mlp_only_layers": [],
        "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }),
    "kimi-linear": ("kimi-linear", "kimi_linear", {
        **{name: value for name, value in LATENT.items() if name not in ("n_routed_experts", "first_k_dense_replace")},
        "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"], "num_local_experts": 4, "linear_head_dim": 8,
        "linear_num_heads": 4, "linear_conv_kernel_dim": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }),
    "glm4moe": ("glm4moe", "glm4_moe", {
        **SIZES, **GROUPED, "head_dim": 16, "use_qk_norm": True, "attention_bias": True,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    }),
}  # fmt: skip
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn": "attn_sinks", "post_attention_layernorm": "ffn_norm", "gate": "ffn_gate_inp", "router": "ffn_gate_inp",
    "router.layer": "ffn_gate_inp",
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps", "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps", "w2": "ffn_down_exps",
    **{f"shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "shared_expert_gate": "ffn_gate_inp_shexp", "exp_probs_b": "exp_probs_b",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "ffn_norm": "ffn_norm", "model.embedding_norm": "token_embd_norm",
    "operator_norm": "attn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    **{f"conv.{part}": f"shortconv.{part}" for part in ("conv", "in_proj", "out_proj")},
    **{f"shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "linear_attn.in_proj_qkvz": "attn_qkv", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
    **{f"self_attn.{name}_conv1d": f"ssm_conv1d_{name}" for name in "qkv"}, "self_attn.b_proj": "ssm_beta",
    **{f"self_attn.{name}_proj": f"ssm_{name}" for name in ("f_a", "f_b", "g_a", "g_b")}, "self_attn.o_norm": "ssm_norm",
    "ssm_a": "ssm_a", "ssm_dt": "ssm_dt",
}  # fmt: skip


def interleaved(value: np.ndarray, heads: int) -> np.ndarray:
    """Rotary pairs side by side, as llama's files have them."""
    return value.reshape(heads, 2, -1, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def converted(name: str, theirs: Any) -> dict[str, np.ndarray]:
    """The reference's tensors under GGUF's names, with the experts stacked."""
    architecture, _, config = MODELS[name]
    stacks: dict[str, list[np.ndarray]] = {}
    tensors: dict[str, np.ndarray] = {}
    for key, value in reference.in_checkpoint(theirs, theirs.state_dict()).items():
        layer, _, own = key.removeprefix("model.layers.").partition(".")
        stem, _, ending = key.rpartition(".") if not layer.isdecimal() else own.rpartition(".")
        if ending == "sinks":
            ending = "weight"
        if ending in ("e_score_correction_bias", "expert_bias"):
            stem, ending = "exp_probs_b", "bias"
        if ending in ("A_log", "dt_bias"):
            stem, ending = ("ssm_a", "") if ending == "A_log" else ("ssm_dt", "bias")
        word = stem.rpartition(".experts.")[2].split(".")[-1] if ".experts." in stem else stem.removeprefix("mlp.")
        word = word.removeprefix("feed_forward.")
        word = NAMES.get(word) or NAMES[word.removeprefix("block_sparse_moe.")]
        if word.endswith("_exps") and ".experts." not in stem:
            word = word.removesuffix("_exps")  # of a layer without experts
        if architecture in ("gpt-oss", "glm4moe", "qwen3next") and word == "ffn_norm":
            word = "post_attention_norm"
        full = (f"blk.{layer}.{word}.{ending}" if layer.isdecimal() else f"{word}.{ending}").removesuffix(".")
        array = np.ascontiguousarray(value.numpy())
        if word in ("ffn_gate_inp_shexp", "exp_probs_b"):
            array = array.reshape(-1)
        if word == "shortconv.conv":
            array = array.squeeze(1)
        if word == "ssm_a":
            array = -np.exp(array)
        if word.startswith("ssm_conv1d"):
            array = array.squeeze(1) if architecture == "qwen3next" else array[None]
        if architecture == "qwen3next" and full.endswith("norm.weight") and word != "ssm_norm":
            array = array + np.float32(1)
        if word == "attn_qkv":  # each key head has its queries, keys, values and gates
            *parts, gates = np.split(array.reshape(2, 2 * (8 + 3 * 12), 64), np.cumsum([8, 8, 3 * 12]), axis=1)
            array = np.concatenate([part.reshape(-1, 64) for part in parts])
            tensors[full.replace("qkv", "gate")] = np.ascontiguousarray(gates.reshape(-1, 64))
        if architecture in ("llama", "granitemoe") and word in ("attn_q", "attn_k"):
            array = interleaved(array, config["num_attention_heads" if word == "attn_q" else "num_key_value_heads"])
        if ".experts." in stem:
            stacks.setdefault(full, []).append(array)
        else:
            tensors[full] = np.ascontiguousarray(array)
    tensors |= {full: np.stack(arrays) for full, arrays in stacks.items()}
    return with_parts(tensors) if architecture == "kimi-linear" else tensors


WHOLE = ("mixtral", "olmoe", "granitemoe")  # whose experts are as wide as an MLP would be


def metadata(name: str, theirs: Any) -> dict[str, Typed]:
    architecture, _, c = MODELS[name]
    whole = {
        "context_length": 64, "embedding_length": 64, "block_count": 2, "feed_forward_length": 96, "expert_count": 4,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16, "expert_used_count": 2,
        **({} if name in WHOLE else {"expert_feed_forward_length": c.get("moe_intermediate_size", 96)}),
        **(GROUPED_COUNTS if "n_group" in c else {}),
        **({"expert_gating_func": 2, "rope.dimension_count": 8} if name == "minimax-m2" else {}),
        **({"expert_shared_count": 2, "leading_dense_block_count": 1} if name == "ernie4_5-moe" else {}),
        **({"interleave_moe_layer_step": 1} if name == "ernie4_5-moe" else {}),
        **({"leading_dense_block_count": 1, "shortconv.l_cache": 3} if name == "lfm2moe" else {}),
        **(LATENT_LENGTHS if architecture == "deepseek2" else {}),
        **({"expert_gating_func": 1} if name == "deepseek2" else {}),
        **({"attention.q_lora_rank": 40, "rope.scaling.original_context_length": 16} if name == "deepseek2 sigmoid" else {}),
        **({"rope.dimension_count": 8} if name in ("glm4moe", "qwen3next") else {}),
        **(DELTA if name == "qwen3next" else KIMI if name == "kimi-linear" else {}),
        **({"expert_shared_feed_forward_length": 48} if name in ("qwen2moe", "qwen3next") else {}),
        **({"attention.sliding_window": 4, "rope.scaling.original_context_length": 4096} if name == "gpt-oss" else {}),
    }  # fmt: skip
    real = {
        "attention.layer_norm_rms_epsilon": theirs.config.norm_eps if name == "lfm2moe" else theirs.config.rms_norm_eps,
        **({} if name == "kimi-linear" else {"rope.freq_base": theirs.config.rope_parameters["rope_theta"]}),
        **({"rope.scaling.factor": 32.0} if name == "gpt-oss" else {}),
        **({"attention.scale": 0.25, "embedding_scale": 6.0} if name == "granitemoe" else {}),
        **({"residual_scale": 0.5, "logit_scale": 3.0} if name == "granitemoe" else {}),
        **({"expert_weights_scale": 1.5} if "n_group" in c else {}),
        **({"rope.scaling.factor": 4.0, "rope.scaling.yarn_log_multiplier": 0.07} if name == "deepseek2 sigmoid" else {}),
    }
    fields: dict[str, Typed] = {f"{architecture}.{key}": (value, Value.UINT32) for key, value in whole.items()}
    fields |= {f"{architecture}.{key}": (value, Value.FLOAT32) for key, value in real.items()}
    if "n_group" in c and name != "kimi-linear":
        fields[f"{architecture}.expert_weights_norm"] = (name != "deepseek2", Value.BOOL)
    if name == "deepseek2 sigmoid":
        fields[f"{architecture}.rope.scaling.type"] = ("yarn", Value.STRING)
    if name == "kimi-linear":
        fields["kimi-linear.attention.head_count_kv"] = ([0, 1, 0], Value.ARRAY, Value.UINT32)
    if name == "lfm2moe":
        fields["lfm2moe.attention.head_count_kv"] = ([0, 2], Value.ARRAY, Value.UINT32)
    if name == "gpt-oss":
        fields["gpt-oss.rope.scaling.type"] = ("yarn", Value.STRING)
    return fields


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_stacked_experts_give_the_references_outputs(name: str, tmp_path: Path) -> None:
    architecture, family, config = MODELS[name]
    theirs = reference.build(family, **config)
    path = write_gguf(tmp_path / "x.gguf", architecture, metadata(name, theirs), converted(name, theirs))
    ours, ids = load(path, "causal"), ids_for(theirs, 2, 11)
    assert ours.config.model_type == family
    close(ours(ids).logits, theirs(ids).logits, 1e-5)
    subject = Subject(path)
    assert subject.verdict(subject.cpu()).agrees(1e-5)


@pytest.mark.parametrize(("name", "kind"), [("mixtral", "Q8_0"), ("qwen3moe", "Q4_0"), ("gpt-oss", "MXFP4")])
@torch.no_grad()
def test_packed_stacks_run_as_they_are(name: str, kind: str, tmp_path: Path) -> None:
    architecture, family, config = MODELS[name]
    theirs, packed = reference.build(family, **config), GGMLQuantizationType[kind]
    tensors: dict[str, Any] = dict(converted(name, theirs))
    for key in [key for key in tensors if key.endswith("_exps.weight")]:
        tensors[key] = (quantize(tensors[key], packed), packed)
    path = write_gguf(tmp_path / "x.gguf", architecture, metadata(name, theirs), tensors)
    subject = Subject(path)
    expert = next(tensor for key, tensor in subject.opened.tensors.items() if ".experts.2." in key and "weight" in key)
    assert expert.kind == kind
    whole = dequantize(tensors["blk.0.ffn_gate_exps.weight"][0], packed)
    first = next(tensor for key, tensor in subject.opened.tensors.items() if ".0." in key and ".experts.2." in key)
    assert np.allclose(first.to_float32(), whole[2])
    verdict = subject.verdict(subject.cpu())
    assert verdict.agrees(1e-2), verdict


@pytest.mark.parametrize(
    "name",
    [
        "mixtral",
        "qwen3moe",
        "qwen2moe",
        "olmoe",
        "granitemoe",
        "glm4moe",
        "deepseek2",
        "deepseek2 sigmoid",
        "minimax-m2",
        "ernie4_5-moe",
        "lfm2moe",
        "qwen3next",
        "kimi-linear",
    ],
)
def test_written_files_stack_the_experts_again(name: str, tmp_path: Path) -> None:
    architecture, family, config = MODELS[name]
    theirs = reference.write(tmp_path, family, **config)
    opened = open_model(tmp_path)
    from glassformer.quantize.export import _folder_weights

    fields, tensors = model_contents("x", *_folder_weights(opened), "F32")
    assert fields["general.architecture"] == architecture
    written = {tensor.name: tensor for tensor in tensors}
    expected = converted(name, theirs)
    assert written.keys() == expected.keys()
    for key, value in expected.items():
        rows = int(np.prod(value.shape[:-1]))
        assert written[key].shape == (value.shape[1:] if "conv1d_" in key else value.shape)  # a size of 1 in front
        assert np.allclose(written[key].open()(0, rows).reshape(value.shape), value), key


def test_layers_that_only_guess_further_tokens_are_left_out(tmp_path: Path) -> None:
    """They come after the layers that a text goes through, and are counted with them."""
    architecture, family, config = MODELS["glm4moe"]
    theirs = reference.build(family, **config)
    tensors = converted("glm4moe", theirs)
    width = {name: value for name, value in tensors.items() if name.startswith("blk.1.")}
    tensors |= {name.replace("blk.1.", "blk.2."): value for name, value in width.items()}
    tensors["blk.2.nextn.eh_proj.weight"] = np.zeros((64, 128), np.float32)
    fields = metadata("glm4moe", theirs)
    fields |= {"glm4moe.block_count": (3, Value.UINT32), "glm4moe.nextn_predict_layers": (1, Value.UINT32)}
    ours, ids = load(write_gguf(tmp_path / "x.gguf", architecture, fields, tensors), "causal"), ids_for(theirs, 2, 11)
    assert ours.config.num_hidden_layers == 2
    close(ours(ids).logits, theirs(ids).logits, 1e-5)


def with_parts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The matrices that make keys and values of latents, as newer files have them: keys transposed in each head."""
    parts = dict(tensors)
    for name in [name for name in tensors if "attn_kv_b" in name]:
        keys, values = np.split(parts.pop(name).reshape(4, 22, 24), [12], axis=1)
        parts[name.replace("kv_b", "k_b")] = np.ascontiguousarray(keys.swapaxes(1, 2))
        parts[name.replace("kv_b", "v_b")] = np.ascontiguousarray(values)
    return parts


@pytest.mark.parametrize("name", ["deepseek2", "deepseek2 sigmoid"])
@torch.no_grad()
def test_keys_and_values_of_latents_in_two_parts_are_one_matrix(name: str, tmp_path: Path) -> None:
    architecture, family, config = MODELS[name]
    theirs = reference.build(family, **config)
    newer: dict[str, Typed] = {f"deepseek2.attention.{what}": (size, Value.UINT32) for what, size in REMEMBERED.items()}
    tensors = with_parts(converted(name, theirs))
    path = write_gguf(tmp_path / "x.gguf", architecture, {**metadata(name, theirs), **newer}, tensors)
    ours, ids = load(path, "causal"), ids_for(theirs, 2, 11)
    close(ours(ids).logits, theirs(ids).logits, 1e-5)
    del tensors["blk.1.attn_v_b.weight"]
    path = write_gguf(tmp_path / "y.gguf", architecture, {**metadata(name, theirs), **newer}, tensors)
    with pytest.raises(CheckpointError, match="blk.1.attn_v_b.weight"):
        load(path, "causal")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@torch.no_grad()
def test_a_projection_in_two_parts_is_one_matrix(kind: str, tmp_path: Path) -> None:
    """Packed alike, it stays as it is packed."""
    architecture, family, config = MODELS["qwen3next"]
    theirs = reference.build(family, **config)
    tensors: dict[str, Any] = dict(converted("qwen3next", theirs))
    for name, own in (("blk.0.attn_qkv.weight", "Q8_0"), ("blk.0.attn_gate.weight", kind)):
        packed = GGMLQuantizationType[own]
        tensors[name] = (quantize(tensors[name], packed), packed)
    path = write_gguf(tmp_path / "x.gguf", architecture, metadata("qwen3next", theirs), tensors)
    subject = Subject(path)
    joined = subject.opened.tensors["model.layers.0.linear_attn.in_proj_qkvz.weight"]
    assert joined.kind == ("Q8_0" if kind == "Q8_0" else "F32")
    both = [dequantize(*tensors[f"blk.0.attn_{part}.weight"]) for part in ("qkv", "gate")]
    queries, keys, values = (part.reshape(2, -1, 64) for part in np.split(both[0], [16, 32]))
    expected = np.concatenate((queries, keys, values, both[1].reshape(2, -1, 64)), axis=1)
    assert np.array_equal(joined.to_float32(), expected.reshape(joined.shape))
    assert subject.verdict(subject.cpu()).agrees(1e-2)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    architecture, family, config = MODELS["qwen3next"]
    theirs = reference.build(family, **config)
    tensors = converted("qwen3next", theirs)
    tensors["blk.0.attn_gate.weight"] = tensors["blk.0.attn_gate.weight"][:-1]
    path = write_gguf(tmp_path / "x.gguf", architecture, metadata("qwen3next", theirs), tensors)
    with pytest.raises(CheckpointError, match="blk.0.attn_gate.weight"):
        load(path, "causal")


def test_a_projection_may_be_whole(tmp_path: Path) -> None:
    """As older files have it."""
    architecture, family, config = MODELS["qwen3next"]
    theirs = reference.build(family, **config)
    tensors = converted("qwen3next", theirs)
    del tensors["blk.0.attn_qkv.weight"], tensors["blk.0.attn_gate.weight"]
    whole = theirs.state_dict()["model.layers.0.linear_attn.in_proj_qkvz.weight"]
    tensors["blk.0.ssm_in.weight"] = whole.numpy()
    ours = load(write_gguf(tmp_path / "x.gguf", architecture, metadata("qwen3next", theirs), tensors), "causal")
    assert torch.equal(ours.state_dict()["model.layers.0.linear_attn.in_proj_qkvz.weight"], whole)


@torch.no_grad()
def test_sizes_of_one_may_be_left_out(tmp_path: Path) -> None:
    """As files have it that were packed by other tools."""
    architecture, family, config = MODELS["kimi-linear"]
    theirs = reference.build(family, **config)
    tensors = converted("kimi-linear", theirs)
    for name, value in tensors.items():
        if name.endswith("ssm_a") or "conv1d_" in name:
            tensors[name] = value.reshape(value.shape[2:] if name.endswith("ssm_a") else value.shape[1:])
    path = write_gguf(tmp_path / "x.gguf", architecture, metadata("kimi-linear", theirs), tensors)
    ours, ids = load(path, "causal"), ids_for(theirs, 2, 11)
    close(ours(ids).logits, theirs(ids).logits, 1e-5)


def test_shares_that_gguf_has_no_field_for_are_refused(tmp_path: Path) -> None:
    _, family, config = MODELS["qwen3moe"]
    reference.write(tmp_path, family, **{**config, "norm_topk_prob": False})
    from glassformer.quantize.export import _folder_weights

    with pytest.raises(InputError, match="normalized=False"):
        model_contents("x", *_folder_weights(open_model(tmp_path)), "F32")


def test_layers_without_experts_that_gguf_has_no_place_for_are_refused(tmp_path: Path) -> None:
    _, family, config = MODELS["qwen3next"]
    reference.write(tmp_path, family, **{**config, "mlp_only_layers": [1]})
    from glassformer.quantize.export import _folder_weights

    with pytest.raises(InputError, match="without experts"):
        model_contents("x", *_folder_weights(open_model(tmp_path)), "F32")


def test_metadata_names_the_family(tmp_path: Path) -> None:
    theirs = reference.build("mixtral", **MODELS["mixtral"][2])
    path = write_gguf(tmp_path / "x.gguf", "llama", metadata("mixtral", theirs), converted("mixtral", theirs))
    config = GgufCheckpoint(path).config
    assert (config["model_type"], config["num_experts"], config["num_experts_per_tok"]) == ("mixtral", 4, 2)
