"""A GGUF file's metadata and tensors in the families' own words, by the table of its architecture; and the way back.

Fields of a config that only have another name stand in tables. The others have readers, which get the metadata and the
tensors: a bias that is there says more than any field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from glassformer.checkpoint.stored_tensors import (
    FoldedVector,
    InterleavedPairs,
    KernelRows,
    Layout,
    NegativeExponential,
    OffsetByOne,
    PartAfterPart,
    SingleRow,
    StoredTensor,
    TiledColumns,
    TiledHeads,
    Transposed,
    computed_tensor,
)
from glassformer.ground.errors import CheckpointError, did_you_mean, did_you_misspell

SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
DECODER_SIZES = {
    **SIZES,
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
EXPERT_SIZES = {
    **DECODER_SIZES,
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
SHARED_EXPERT_SIZES = {**EXPERT_SIZES, "expert_shared_feed_forward_length": "shared_expert_intermediate_size"}
GATED_DELTA = {
    "full_attention_interval": "full_attention_interval",
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
}
GROUPED_EXPERT_SIZES = {
    **EXPERT_SIZES,
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
LATENT_SIZES = {
    **{key: name for key, name in GROUPED_EXPERT_SIZES.items() if name not in ("head_dim", "num_key_value_heads")},
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}
WHOLE_EXPERT_SIZES = {**EXPERT_SIZES, "expert_feed_forward_length": "intermediate_size"}
ERNIE_MOE_SIZES = {
    **EXPERT_SIZES,
    "expert_shared_count": "moe_num_shared_experts",
    "leading_dense_block_count": "moe_layer_start_index",
    "interleave_moe_layer_step": "moe_layer_interval",
}
GPT_OSS_SIZES = {
    **EXPERT_SIZES,
    "expert_feed_forward_length": "intermediate_size",
    "attention.sliding_window": "sliding_window",
}
GEMMA_SIZES = {
    **DECODER_SIZES,
    "attention.sliding_window": "sliding_window",
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}
GEMMA4_SIZES = {
    **{
        key: name
        for key, name in GEMMA_SIZES.items()
        if name not in ("num_key_value_heads", "intermediate_size", "head_dim")
    },
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
WINDOW_SIZES = {**DECODER_SIZES, "attention.sliding_window": "sliding_window"}
LFM2_SIZES = {
    **{key: name for key, name in DECODER_SIZES.items() if name != "num_key_value_heads"},
    "shortconv.l_cache": "conv_L_cache",
}
LFM2_MOE_SIZES = {
    **{key: name for key, name in EXPERT_SIZES.items() if name != "num_key_value_heads"}, **LFM2_SIZES,
    "leading_dense_block_count": "num_dense_layers",
}  # fmt: skip
GRANITE_SIZES = {
    **DECODER_SIZES,
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
GRANITE_MOE_SIZES = {
    **GRANITE_SIZES,
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
}
MAMBA2_SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "num_heads",
}
FALCON_H1_SIZES = {
    **DECODER_SIZES,
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
NEMOTRON_H_SIZES = {
    **{key: name for key, name in MAMBA2_SIZES.items() if not key.startswith("ssm.")},
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
}
NEMOTRON_H_MOE_SIZES = {
    **NEMOTRON_H_SIZES,
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
    "moe_latent_size": "moe_latent_size",
}
STARCODER2_SIZES = {
    **{key: name for key, name in DECODER_SIZES.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "norm_epsilon",
}
COHERE_SIZES = {
    **{key: name for key, name in DECODER_SIZES.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "logit_scale": "logit_scale",
}
LAYER_NORM_SIZES = {
    **{key: name for key, name in DECODER_SIZES.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "layer_norm_eps",
}
STABLELM_SIZES = {**LAYER_NORM_SIZES, "use_parallel_residual": "use_parallel_residual"}
NEMOTRON_SIZES = {**LAYER_NORM_SIZES, "attention.layer_norm_epsilon": "norm_eps"}
OLMO_SIZES = {
    **{key: name for key, name in DECODER_SIZES.items() if name != "rms_norm_eps"}, "attention.clamp_kqv": "clip_qkv",
}  # fmt: skip
STARCODER_SIZES = {
    **SIZES, "attention.head_count_kv": "num_key_value_heads", "attention.layer_norm_epsilon": "layer_norm_epsilon",
}  # fmt: skip
BLOOM_SIZES = {
    "context_length": "seq_length",
    "embedding_length": "hidden_size",
    "block_count": "n_layer",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
MPT_SIZES = {
    "context_length": "max_seq_len",
    "embedding_length": "d_model",
    "block_count": "n_layers",
    "attention.head_count": "n_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
}
GPTNEOX_SIZES = {
    **SIZES,
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "use_parallel_residual": "use_parallel_residual",
    "rope.freq_base": "rope_theta",
}
MODERN_BERT_SIZES = {
    **SIZES,
    "attention.layer_norm_epsilon": "norm_eps",
    "attention.sliding_window": "local_attention",
    "attention.sliding_window_pattern": "global_attn_every_n_layers",
    "rope.freq_base": "global_rope_theta",
    "rope.freq_base_swa": "local_rope_theta",
}
SIGMOID = 2  # of expert_gating_func
REQUIRED = ("embedding_length", "block_count", "attention.head_count")
T5_SIZES = {
    "context_length": "n_positions",
    "embedding_length": "d_model",
    "block_count": "num_layers",
    "decoder_block_count": "num_decoder_layers",
    "feed_forward_length": "d_ff",
    "attention.head_count": "num_heads",
    "attention.key_length": "d_kv",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "attention.relative_buckets_count": "relative_attention_num_buckets",
    "decoder_start_token_id": "decoder_start_token_id",
}

ROPE_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of longrope

Metadata: TypeAlias = Mapping[str, Any]  # without the architecture's name in front
Raw: TypeAlias = Mapping[str, StoredTensor]


def decoder_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    biases = {"attention_bias": "blk.0.attn_q.bias" in raw, "mlp_bias": "blk.0.ffn_up.bias" in raw}
    return {**biases, "rope_scaling": _rope_scaling(metadata, raw)}


def partly_rotated_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """The share of a head that is rotated, where a file says how many numbers that is."""
    rotated, size = metadata.get("rope.dimension_count"), metadata.get("attention.key_length") or _head_width(metadata)
    share = rotated / size if isinstance(rotated, int) and isinstance(size, int) and size > 0 else 1.0
    return {**decoder_fields(metadata, raw), "partial_rotary_factor": share}


def _head_width(metadata: Metadata) -> int | None:
    """The width of a head, where all heads together are as wide as the stream."""
    width, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None


def gptneox_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return partly_rotated_fields(metadata, raw) | {"attention_bias": "blk.0.attn_qkv.bias" in raw}


def stablelm_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return partly_rotated_fields(metadata, raw) | {"use_qkv_bias": "blk.0.attn_q.bias" in raw, "attention_bias": None}


def starcoder2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"use_bias": "blk.0.attn_q.bias" in raw, "rope_scaling": _rope_scaling(metadata, raw)}


def mpt_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    largest = metadata.get("attention.max_alibi_bias", 8)
    largest = int(largest) if isinstance(largest, float) and largest.is_integer() else largest
    return {"attn_config": {"alibi_bias_max": largest, "clip_qkv": metadata.get("attention.clamp_kqv")}}


def ernie_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"use_bias": "blk.0.attn_q.bias" in raw, "rope_scaling": _rope_scaling(metadata, raw)}


def ernie_moe_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {**ernie_fields(metadata, raw), **without_drafts(metadata)}


def seed_oss_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return decoder_fields(metadata, raw) | {"attention_out_bias": "blk.0.attn_output.bias" in raw}


def exaone4_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Without a window, all layers are alike; with one, every fourth sees everything, unless a file lists the others."""
    window, count = metadata.get("attention.sliding_window"), metadata.get("block_count")
    pattern = metadata.get("attention.sliding_window_pattern")
    if not window:
        kinds: list[str] | None = ["full_attention"] * count if isinstance(count, int) else None
        return {"rope_scaling": _rope_scaling(metadata, raw), "sliding_window": None, "layer_types": kinds}
    return {"rope_scaling": _rope_scaling(metadata, raw), "layer_types": _kinds(pattern)}


def _kinds(pattern: Any) -> list[str] | None:
    """Each layer's kind, where a file says of each whether it looks back over a window."""
    if not isinstance(pattern, list):
        return None
    return ["sliding_attention" if local else "full_attention" for local in pattern]


def olmo2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """OLMo 3 is a file of OLMo 2 that has windows."""
    if not metadata.get("attention.sliding_window"):
        return decoder_fields(metadata, raw)
    theta = shortest_float(metadata.get("rope.freq_base"))  # of all layers
    local = {"rope_type": "default"} if theta is None else {"rope_type": "default", "rope_theta": theta}
    ropes = {"rope_parameters": {"sliding_attention": local}}
    return {**decoder_fields(metadata, raw), **ropes, "model_type": "olmo3",
        "layer_types": _kinds(metadata.get("attention.sliding_window_pattern")),
    }  # fmt: skip


def _query_scalar(metadata: Metadata, largest: int) -> dict[str, Any]:
    """What Gemma's files leave unsaid: its largest model scales by the width of a head as others have it."""
    scalar = metadata.get("attention.key_length")
    if metadata.get("block_count") == largest:
        scalar = _head_width(metadata) or scalar
    return {} if scalar is None else {"query_pre_attn_scalar": scalar}


def gemma2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return decoder_fields(metadata, raw) | _query_scalar(metadata, largest=46)


def gemma3_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    pattern = metadata.get("attention.sliding_window_pattern", 6) if metadata.get("attention.sliding_window") else 1
    return {
        **decoder_fields(metadata, raw),
        **_query_scalar(metadata, largest=62),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", 10_000.0),
        "sliding_window_pattern": pattern,  # 1: every layer sees everything
    }


def gemma4_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Layers that see everything may have fewer and larger heads, and no values of their own; the last ones more neurons."""
    pattern, groups = metadata.get("attention.sliding_window_pattern"), metadata.get("attention.head_count_kv")
    local: list[Any] = pattern if isinstance(pattern, list) else []
    inner, table = metadata.get("feed_forward_length"), raw.get("per_layer_token_embd.weight")
    full = [layer for layer, near in enumerate(local) if not near]
    by_kind: dict[bool, Any] = {True: groups, False: None}
    if isinstance(groups, list):
        by_kind |= {bool(near): count for near, count in zip(local, groups, strict=False)}
    divisors = raw["rope_freqs.weight"].to_float32().ravel() if "rope_freqs.weight" in raw else None
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shortest_float(metadata.get("rope.freq_base", 1e6))}
    if divisors is not None and len(divisors):
        rope |= {"rope_type": "proportional", "partial_rotary_factor": float((divisors < 2).mean())}
    theta = shortest_float(metadata.get("rope.freq_base_swa", 1e4))
    return {
        "attention_bias": "blk.0.attn_q.bias" in raw,
        "layer_types": _kinds(pattern),
        "num_key_value_heads": by_kind[True],
        "num_global_key_value_heads": by_kind[False],
        "attention_k_eq_v": bool(full) and f"blk.{full[0]}.attn_v.weight" not in raw,
        "intermediate_size": min(inner) if isinstance(inner, list) and inner else inner,
        "use_double_wide_mlp": isinstance(inner, list) and len(set(inner)) > 1,
        "rope_parameters": {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": theta}},
        **({} if table is None else {"vocab_size_per_layer_input": table.shape[0]}),
    }


def lfm2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """A layer without heads of keys does not attend. So many neurons as a file says are all that there are."""
    groups = metadata.get("attention.head_count_kv")
    own: dict[str, Any] = {"num_key_value_heads": groups}
    if isinstance(groups, list) and groups and all(type(count) is int for count in groups):
        own = {
            "num_key_value_heads": max(groups),
            "layer_types": ["full_attention" if count else "conv" for count in groups],
        }
    biased = any(name.endswith(".shortconv.in_proj.bias") for name in raw)
    return {"rope_scaling": _rope_scaling(metadata, raw), "conv_bias": biased, "block_auto_adjust_ff_dim": False, **own}


def lfm2_moe_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers always make shares add up to one, and scale none of them."""
    corrected = any(name.endswith(".exp_probs_b.bias") for name in raw)
    own = {name: value for name, value in lfm2_fields(metadata, raw).items() if name != "block_auto_adjust_ff_dim"}
    return {**own, "use_expert_bias": corrected, "norm_topk_prob": True}


def mixtral_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"rope_scaling": _rope_scaling(metadata, raw)}


def qwen3_moe_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers always make shares add up to one; a layer may be without experts."""
    dense = sorted(int(name.split(".")[1]) for name in raw if name.endswith(".ffn_gate.weight"))
    return {**decoder_fields(metadata, raw), "norm_topk_prob": True, "mlp_only_layers": dense}


def qwen2_moe_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers never make shares add up to one."""
    return {**qwen3_moe_fields(metadata, raw), "norm_topk_prob": False}


def without_drafts(metadata: Metadata) -> dict[str, Any]:
    """The layers that a text goes through: a file counts those that guess further tokens, too, which come after them."""
    count, drafts = metadata.get("block_count"), metadata.get("nextn_predict_layers")
    if not isinstance(count, int) or not isinstance(drafts, int) or not 0 < drafts < count:
        return {}
    return {"num_hidden_layers": count - drafts, "num_nextn_predict_layers": drafts}


def gated_delta_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """How wide a state's heads are follows from all of them together."""
    inner, heads = metadata.get("ssm.inner_size"), metadata.get("ssm.time_step_rank")
    own = {**partly_rotated_fields(metadata, raw), **without_drafts(metadata)}
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        own["linear_value_head_dim"] = inner // heads
    return own


def mamba2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """How wide heads are follows from all of them together; biases are there or not."""
    inner, heads, hidden = (metadata.get(key) for key in ("ssm.inner_size", "ssm.time_step_rank", "embedding_length"))
    own: dict[str, Any] = {"use_bias": "blk.0.ssm_in.bias" in raw, "use_conv_bias": "blk.0.ssm_conv1d.bias" in raw}
    if isinstance(inner, int) and isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
        own |= {"head_dim": inner // heads, "expand": inner // hidden}
    return own


def falcon_h1_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """A file has no multipliers: they are parts of its matrices. What is normed of a state is normed behind its gate."""
    own = {**decoder_fields(metadata, raw), "mamba_norm_before_gate": False}
    named = {"mamba_rms_norm": "ssm_norm.weight", "mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}
    own |= {field: f"blk.0.{tensor}" in raw for field, tensor in {**named, "projectors_bias": "ssm_out.bias"}.items()}
    inner, heads = metadata.get("ssm.inner_size"), metadata.get("ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        own |= {"mamba_d_ssm": inner, "mamba_d_head": inner // heads}
    return own


def nemotron_h_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """What each block is follows from what it has; numbers that are listed for all blocks are 0 where they mean nothing."""
    shown = {"ffn_gate_inp.weight": "moe", "ffn_up.weight": "mlp", "attn_q.weight": "full_attention"}
    own: dict[str, Any] = without_drafts(metadata)
    if isinstance(count := own.get("num_hidden_layers", metadata.get("block_count")), int):
        own["layers_block_type"] = [
            next((kind for name, kind in shown.items() if f"blk.{layer}.{name}" in raw), "linear_attention")
            for layer in range(min(count, len(raw)))  # each has a tensor
        ]
    for key, name in (("attention.head_count_kv", "num_key_value_heads"), ("feed_forward_length", "intermediate_size")):
        listed = metadata.get(key)
        counts = listed if isinstance(listed, list | tuple) else [listed]
        if (most := max((number for number in counts if isinstance(number, int)), default=0)) > 0:
            own[name] = most
    for part, name in (("ssm_in", "use_bias"), ("ssm_conv1d", "use_conv_bias"), ("ffn_(up|down)", "mlp_bias")):
        own[name] = any(re.fullmatch(rf"blk\.\d+\.{part}\.bias", tensor) for tensor in raw)
    inner, heads = metadata.get("ssm.inner_size"), metadata.get("ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        own["mamba_head_dim"] = inner // heads
    if not metadata.get("expert_count"):  # sizes of what the model does not have are no larger than those of what it has
        absent = ("moe_intermediate_size", "moe_shared_expert_intermediate_size")
        own |= dict.fromkeys(absent, own.get("intermediate_size", 1))
    return own


def glm4_moe_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    own = {**partly_rotated_fields(metadata, raw), **without_drafts(metadata)}
    return {**own, "use_qk_norm": "blk.0.attn_q_norm.weight" in raw}


def latent_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Of latent attention. Newer files have the sizes of latents where others have those of heads, and these beside them."""
    key, value = (
        metadata.get(f"attention.{what}_length_mla") or metadata.get(f"attention.{what}_length") for what in ("key", "value")
    )
    turned = metadata.get("rope.dimension_count")
    own = {"qk_nope_head_dim": key - turned} if isinstance(key, int) and isinstance(turned, int) else {}
    queries = {} if "attention.q_lora_rank" in metadata else {"q_lora_rank": None}
    biases = {"attention_bias": "blk.0.attn_kv_a_mqa.bias" in raw}
    scaling = {"rope_scaling": _rope_scaling(metadata, raw)}
    return {**own, "v_head_dim": value, **queries, **biases, **scaling, **without_drafts(metadata)}


def deepseek_v2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    grouped = (metadata.get("expert_group_count") or 1) > 1
    return {**latent_fields(metadata, raw), "topk_method": "group_limited_greedy" if grouped else "greedy"}


def gpt_oss_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    scaling = _rope_scaling(metadata, raw)
    return {"rope_scaling": scaling and {**scaling, "truncate": False}}  # as its config has it; no field says so


def bert_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    types = raw.get("token_types.weight")
    return {} if types is None else {"type_vocab_size": types.shape[0]}


def modern_bert_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    biased = {"norm_bias": "output_norm", "attention_bias": "blk.0.attn_qkv", "mlp_bias": "blk.0.ffn_up"}
    return {name: f"{tensor}.bias" in raw for name, tensor in biased.items()}


def t5_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """UMT5 is told from T5 by its biases in every block."""
    family = {"model_type": "umt5"} if {"enc.blk.1.attn_rel_b.weight", "dec.blk.1.attn_rel_b.weight"} & raw.keys() else {}
    return family | {"feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in raw else "relu"}


def _rope_scaling(metadata: Metadata, raw: Raw) -> dict[str, Any] | None:
    """How RoPE is stretched. Llama 3 files hold only the resulting divisors; the blueprint finds the rule again."""
    if "rope_freqs.weight" in raw:
        return {"rope_type": "divisors", "divisors": raw["rope_freqs.weight"].to_float32().ravel().tolist()}
    trained = metadata.get("rope.scaling.original_context_length")
    if all(name in raw for name in ROPE_FACTORS.values()):
        return {
            "rope_type": "longrope",
            "attention_factor": shortest_float(metadata.get("rope.scaling.attn_factor", 1.0)),
            "original_max_position_embeddings": trained,
            **{name: raw[tensor].to_float32().ravel().tolist() for name, tensor in ROPE_FACTORS.items()},
        }
    kind = metadata.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    sharper = shortest_float(metadata.get("rope.scaling.yarn_log_multiplier"))  # a tenth of what DeepSeek's files have
    mscale = {} if not sharper else dict.fromkeys(("mscale", "mscale_all_dim"), round(10 * sharper, 6))
    return {
        "rope_type": kind,
        "factor": shortest_float(metadata.get("rope.scaling.factor")),
        "original_max_position_embeddings": trained,
        **mscale,
    }


def shortest_float(value: Any) -> Any:
    """A number as it was before it became a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


DECODER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
}
COHERE = {theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_norm")}
ARCEE = {theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_gate")}
SEED_OSS = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_norm")},
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
}
GLM4 = {
    **ARCEE,
    "blk.{}.post_attention_norm": "model.layers.{}.post_self_attn_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_mlp_layernorm",
    "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
HUNYUAN = {
    **DECODER,
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.query_layernorm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.key_layernorm",
}
PHI2 = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith(("ffn_norm", "ffn_gate"))},
    "output_norm": "model.final_layernorm",
    "blk.{}.attn_output": "model.layers.{}.self_attn.dense",
    "blk.{}.ffn_up": "model.layers.{}.mlp.fc1",
    "blk.{}.ffn_down": "model.layers.{}.mlp.fc2",
}
OLMO = {theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("_norm")}
HEAD_NORMS = {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
EXPERTS = {  # stacked: * stands for the index of each
    "blk.{}.ffn_gate_inp": "model.layers.{}.mlp.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.mlp.experts.*.gate_proj",
    "blk.{}.ffn_up_exps": "model.layers.{}.mlp.experts.*.up_proj",
    "blk.{}.ffn_down_exps": "model.layers.{}.mlp.experts.*.down_proj",
}
SHARED_EXPERT = {  # one that all tokens go to
    "blk.{}.ffn_gate_shexp": "model.layers.{}.mlp.shared_expert.gate_proj",
    "blk.{}.ffn_up_shexp": "model.layers.{}.mlp.shared_expert.up_proj",
    "blk.{}.ffn_down_shexp": "model.layers.{}.mlp.shared_expert.down_proj",
}
QWEN2_MOE = {
    **DECODER, **EXPERTS, **SHARED_EXPERT, "blk.{}.ffn_gate_inp_shexp": "model.layers.{}.mlp.shared_expert_gate",
}  # fmt: skip
MIXTRAL = {
    **{theirs: ours for theirs, ours in DECODER.items() if ".mlp." not in ours},
    "blk.{}.ffn_gate_inp": "model.layers.{}.block_sparse_moe.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.block_sparse_moe.experts.*.w1",
    "blk.{}.ffn_up_exps": "model.layers.{}.block_sparse_moe.experts.*.w3",
    "blk.{}.ffn_down_exps": "model.layers.{}.block_sparse_moe.experts.*.w2",
}
GPT_OSS = {
    **{theirs: ours for theirs, ours in DECODER.items() if "ffn" not in theirs},
    **EXPERTS,
    "blk.{}.ffn_gate_inp": "model.layers.{}.mlp.router",
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.attn_sinks": "model.layers.{}.self_attn.sinks",
}
LATENT_ATTENTION = {
    "blk.{}.attn_q_a": "model.layers.{}.self_attn.q_a_proj",
    "blk.{}.attn_q_a_norm": "model.layers.{}.self_attn.q_a_layernorm",
    "blk.{}.attn_q_b": "model.layers.{}.self_attn.q_b_proj",
    "blk.{}.attn_kv_a_mqa": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
    "blk.{}.attn_kv_a_norm": "model.layers.{}.self_attn.kv_a_layernorm",
    "blk.{}.attn_kv_b": "model.layers.{}.self_attn.kv_b_proj",
}
ENDINGS = {  # names that are whole without the ending that GGUF has, which may be none
    ".self_attn.sinks": ".weight", ".layer_scalar": ".weight", ".e_score_correction_bias": ".bias",
    ".linear_attn.dt_bias": ".bias", ".linear_attn.A_log": "", ".expert_bias": ".bias",
    **{f".mamba.{name}": ending for name, ending in (("dt_bias", ".bias"), ("A_log", ""), ("D", ""))},
    ".pre_ff_layernorm.weight": "", ".mixer.dt_bias": ".bias", ".mixer.A_log": "", ".mixer.D": "",
}  # fmt: skip
GROUPED_EXPERTS = {
    **EXPERTS,
    "blk.{}.exp_probs_b": "model.layers.{}.mlp.gate.e_score_correction_bias",
    **{theirs: ours.replace("shared_expert", "shared_experts") for theirs, ours in SHARED_EXPERT.items()},
}
LATENT = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith(("attn_k", "attn_v"))},
    **LATENT_ATTENTION, **GROUPED_EXPERTS,
}  # fmt: skip
MINIMAX = {
    **{theirs: ours.replace(".mlp.", ".block_sparse_moe.") for theirs, ours in MIXTRAL.items()}, **HEAD_NORMS,
    "blk.{}.exp_probs_b": "model.layers.{}.block_sparse_moe.e_score_correction_bias",
}  # fmt: skip
ERNIE_MOE = {
    **DECODER, **GROUPED_EXPERTS, "blk.{}.exp_probs_b": "model.layers.{}.mlp.moe_statics.e_score_correction_bias",
}  # fmt: skip
NEXTN = {  # of a head for further tokens, whose block is the layer behind the last one
    **{f"blk.{{}}.nextn.{name}": f"model.layers.{{}}.{name}" for name in ("eh_proj", "embed_tokens", "enorm", "hnorm")},
    "blk.{}.nextn.shared_head_head": "model.layers.{}.shared_head.head",
    "blk.{}.nextn.shared_head_norm": "model.layers.{}.shared_head.norm",
}
GLM4_MOE = {**SEED_OSS, **HEAD_NORMS, **GROUPED_EXPERTS, **NEXTN}
GRANITE_MOE = {
    **{theirs: ours for theirs, ours in DECODER.items() if ".mlp." not in ours},
    "blk.{}.ffn_gate_inp": "model.layers.{}.block_sparse_moe.router.layer",
    **{
        f"blk.{{}}.ffn_{name}_exps": f"model.layers.{{}}.block_sparse_moe.experts.*.{name}_proj"
        for name in ("gate", "up", "down")
    },
}
MAMBA2 = {
    "token_embd": "backbone.embeddings",
    "output_norm": "backbone.norm_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "backbone.layers.{}.norm",
    "blk.{}.ssm_in": "backbone.layers.{}.mixer.in_proj",
    "blk.{}.ssm_conv1d": "backbone.layers.{}.mixer.conv1d",
    "blk.{}.ssm_dt": "backbone.layers.{}.mixer.dt_bias",
    "blk.{}.ssm_a": "backbone.layers.{}.mixer.A_log",
    "blk.{}.ssm_d": "backbone.layers.{}.mixer.D",
    "blk.{}.ssm_norm": "backbone.layers.{}.mixer.norm",
    "blk.{}.ssm_out": "backbone.layers.{}.mixer.out_proj",
}
FALCON_H1 = {
    **{
        theirs: ours.replace(".mlp.", ".feed_forward.").replace("model.norm", "model.final_layernorm")
        for theirs, ours in DECODER.items()
    },
    "blk.{}.ffn_norm": "model.layers.{}.pre_ff_layernorm.weight",  # which has no ending in files
    **{
        theirs: ours.replace("backbone.layers.{}.mixer", "model.layers.{}.mamba")
        for theirs, ours in MAMBA2.items() if ".mixer." in ours
    },
}  # fmt: skip
NEMOTRON_H = {
    **MAMBA2,
    **{f"blk.{{}}.attn_{name}": f"backbone.layers.{{}}.mixer.{name}_proj" for name in "qkv"},
    "blk.{}.attn_output": "backbone.layers.{}.mixer.o_proj",
    "blk.{}.ffn_up": "backbone.layers.{}.mixer.up_proj",
    "blk.{}.ffn_down": "backbone.layers.{}.mixer.down_proj",
}
NEMOTRON_H_MOE = {
    **{theirs: ours for theirs, ours in NEMOTRON_H.items() if "ffn" not in theirs},
    "blk.{}.ffn_gate_inp": "backbone.layers.{}.mixer.gate",
    "blk.{}.exp_probs_b": "backbone.layers.{}.mixer.gate.e_score_correction_bias",
    "blk.{}.ffn_latent_down": "backbone.layers.{}.mixer.fc1_latent_proj",
    "blk.{}.ffn_latent_up": "backbone.layers.{}.mixer.fc2_latent_proj",
    "blk.{}.ffn_up_exps": "backbone.layers.{}.mixer.experts.*.up_proj",
    "blk.{}.ffn_down_exps": "backbone.layers.{}.mixer.experts.*.down_proj",
    "blk.{}.ffn_up_shexp": "backbone.layers.{}.mixer.shared_experts.up_proj",
    "blk.{}.ffn_down_shexp": "backbone.layers.{}.mixer.shared_experts.down_proj",
}
QWEN35 = {
    **SEED_OSS,
    **HEAD_NORMS,
    "blk.{}.attn_qkv": "model.layers.{}.linear_attn.in_proj_qkv",
    "blk.{}.attn_gate": "model.layers.{}.linear_attn.in_proj_z",
    "blk.{}.ssm_beta": "model.layers.{}.linear_attn.in_proj_b",
    "blk.{}.ssm_alpha": "model.layers.{}.linear_attn.in_proj_a",
    "blk.{}.ssm_conv1d": "model.layers.{}.linear_attn.conv1d",
    "blk.{}.ssm_dt": "model.layers.{}.linear_attn.dt_bias",
    "blk.{}.ssm_a": "model.layers.{}.linear_attn.A_log",
    "blk.{}.ssm_norm": "model.layers.{}.linear_attn.norm",
    "blk.{}.ssm_out": "model.layers.{}.linear_attn.out_proj",
}
LFM2 = {
    **{
        theirs: ours.replace(".mlp.gate_proj", ".feed_forward.w1").replace(".mlp.up_proj", ".feed_forward.w3")
        .replace(".mlp.down_proj", ".feed_forward.w2").replace(".o_proj", ".out_proj")
        .replace(".input_layernorm", ".operator_norm").replace(".post_attention_layernorm", ".ffn_norm")
        for theirs, ours in DECODER.items() if theirs != "output_norm"
    },
    "token_embd_norm": "model.embedding_norm",  # the last norm
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_layernorm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_layernorm",
    "blk.{}.shortconv.conv": "model.layers.{}.conv.conv",
    "blk.{}.shortconv.in_proj": "model.layers.{}.conv.in_proj",
    "blk.{}.shortconv.out_proj": "model.layers.{}.conv.out_proj",
}  # fmt: skip
LFM2_MOE = {
    **LFM2,
    "blk.{}.ffn_gate_inp": "model.layers.{}.feed_forward.gate",
    "blk.{}.ffn_gate_exps": "model.layers.{}.feed_forward.experts.*.w1",
    "blk.{}.ffn_up_exps": "model.layers.{}.feed_forward.experts.*.w3",
    "blk.{}.ffn_down_exps": "model.layers.{}.feed_forward.experts.*.w2",
    "blk.{}.exp_probs_b": "model.layers.{}.feed_forward.expert_bias",
}
QWEN35_MOE = {
    **{theirs: ours for theirs, ours in QWEN35.items() if ".mlp." not in ours},
    **{theirs: ours for theirs, ours in QWEN2_MOE.items() if ".mlp." in ours and theirs not in DECODER},
}
GEMMA2 = {
    **DECODER,
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
GEMMA3 = {**GEMMA2, **HEAD_NORMS}
GEMMA4 = {
    **GEMMA3,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "blk.{}.inp_gate": "model.layers.{}.per_layer_input_gate",
    "blk.{}.proj": "model.layers.{}.per_layer_projection",
    "blk.{}.post_norm": "model.layers.{}.post_per_layer_input_norm",
    "blk.{}.layer_output_scale": "model.layers.{}.layer_scalar",
}
OLMO2 = {theirs: ours for theirs, ours in GEMMA3.items() if theirs not in ("blk.{}.attn_norm", "blk.{}.ffn_norm")}
PHI3 = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith(("attn_q", "attn_k", "attn_v", "ffn_gate"))},
    "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
STARCODER2 = {
    **{theirs: ours for theirs, ours in DECODER.items() if not theirs.endswith("ffn_gate")},
    "blk.{}.ffn_up": "model.layers.{}.mlp.c_fc",
    "blk.{}.ffn_down": "model.layers.{}.mlp.c_proj",
}
GPTNEOX = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "gpt_neox.layers.{}.input_layernorm",
    "blk.{}.attn_qkv": "gpt_neox.layers.{}.attention.query_key_value",
    "blk.{}.attn_output": "gpt_neox.layers.{}.attention.dense",
    "blk.{}.ffn_norm": "gpt_neox.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
}
BLOOM = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.input_layernorm",
    "blk.{}.attn_qkv": "transformer.h.{}.self_attention.query_key_value",
    "blk.{}.attn_output": "transformer.h.{}.self_attention.dense",
    "blk.{}.ffn_norm": "transformer.h.{}.post_attention_layernorm",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.dense_h_to_4h",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.dense_4h_to_h",
}
MPT = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.blocks.{}.norm_1",
    "blk.{}.attn_qkv": "transformer.blocks.{}.attn.Wqkv",
    "blk.{}.attn_output": "transformer.blocks.{}.attn.out_proj",
    "blk.{}.ffn_norm": "transformer.blocks.{}.norm_2",
    "blk.{}.ffn_up": "transformer.blocks.{}.ffn.up_proj",
    "blk.{}.ffn_down": "transformer.blocks.{}.ffn.down_proj",
}
GPT2 = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{}.attn_norm": "transformer.h.{}.ln_1",
    "blk.{}.attn_qkv": "transformer.h.{}.attn.c_attn",
    "blk.{}.attn_output": "transformer.h.{}.attn.c_proj",
    "blk.{}.ffn_norm": "transformer.h.{}.ln_2",
    "blk.{}.ffn_up": "transformer.h.{}.mlp.c_fc",
    "blk.{}.ffn_down": "transformer.h.{}.mlp.c_proj",
}
BERT = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.{}.attn_q": "encoder.layer.{}.attention.self.query",
    "blk.{}.attn_k": "encoder.layer.{}.attention.self.key",
    "blk.{}.attn_v": "encoder.layer.{}.attention.self.value",
    "blk.{}.attn_output": "encoder.layer.{}.attention.output.dense",
    "blk.{}.attn_output_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "blk.{}.ffn_up": "encoder.layer.{}.intermediate.dense",
    "blk.{}.ffn_down": "encoder.layer.{}.output.dense",
    "blk.{}.layer_output_norm": "encoder.layer.{}.output.LayerNorm",
}
MODERN_BERT = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.{}.attn_norm": "layers.{}.attn_norm",
    "blk.{}.attn_qkv": "layers.{}.attn.Wqkv",
    "blk.{}.attn_output": "layers.{}.attn.Wo",
    "blk.{}.ffn_norm": "layers.{}.mlp_norm",
    "blk.{}.ffn_up": "layers.{}.mlp.Wi",
    "blk.{}.ffn_down": "layers.{}.mlp.Wo",
}
T5 = {
    "token_embd": "shared",
    "output": "lm_head",
    "enc.output_norm": "encoder.final_layer_norm",
    "dec.output_norm": "decoder.final_layer_norm",
    **{
        f"{short}.blk.{{}}.{theirs}": f"{stack}.block.{{}}.layer.{ours}"
        for short, stack, last in (("enc", "encoder", 1), ("dec", "decoder", 2))
        for theirs, ours in {
            "attn_norm": "0.layer_norm",
            **{f"attn_{name}": f"0.SelfAttention.{name}" for name in "qkvo"},
            "attn_rel_b": "0.SelfAttention.relative_attention_bias",
            **({"cross_attn_norm": "1.layer_norm"} if short == "dec" else {}),
            **({f"cross_attn_{name}": f"1.EncDecAttention.{name}" for name in "qkvo"} if short == "dec" else {}),
            "ffn_norm": f"{last}.layer_norm",
            "ffn_gate": f"{last}.DenseReluDense.wi_0",
            "ffn_up": f"{last}.DenseReluDense.wi_1",
            "ffn_down": f"{last}.DenseReluDense.wo",
        }.items()
    },
}
T5_PLAIN = {theirs: ours.replace("wi_1", "wi") for theirs, ours in T5.items() if not theirs.endswith("ffn_gate")}


def config_from_gguf(metadata: Mapping[str, Any], raw: Mapping[str, StoredTensor], path: Path) -> dict[str, Any]:
    """The configuration that `config.json` would hold."""
    architecture, table = table_of(metadata, path)
    fields = {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}
    for key in REQUIRED:
        if fields.get(key) is None:
            raise CheckpointError(f"{path}: GGUF field '{architecture}.{key}' is missing. Fetch the file again.")
    config: dict[str, Any] = {"model_type": table.model_type}
    for key, name in table.sizes.items():
        if (value := fields.get(key)) is not None:
            config[name] = shortest_float(value)
    if "head_dim" in table.sizes.values() and "head_dim" not in config:
        config["head_dim"] = _head_width(fields)
    embedding = raw.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(f"{path}: GGUF tensor 'token_embd.weight' is missing. Fetch the file again.")
    config["vocab_size"] = embedding.shape[0]
    config["tie_word_embeddings"] = "output.weight" not in raw or raw["output.weight"].same_bytes(embedding)
    for name in ("bos", "eos", "padding"):
        if (token := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name.removesuffix('ding')}_token_id"] = token
    return config | table.extra(fields, raw)


def tensors_from_gguf(
    metadata: Mapping[str, Any], config: Mapping[str, Any], raw: Raw, path: Path
) -> dict[str, StoredTensor]:
    """The tensors under the family's names, with the layout that leads from the file's to the family's order."""
    _, table = table_of(metadata, path)
    tensors: dict[str, StoredTensor] = {}
    for name, stored in with_whole_expansions(raw).items():
        if name in table.ignored or (_is_of_draft(name, config) and not NEXTN.items() <= table.names.items()):
            continue
        family_name, layout = family_name_and_layout(metadata, config, name, stored.shape, path)
        shape = stored.shape if layout is None else layout.stored_shape(stored.shape)  # each layout is its own inverse there
        tensor = replace(stored, name=family_name, shape=shape, layout=layout)
        tensors |= unstacked(tensor) if "*" in family_name else {family_name: tensor}
    return tensors


def with_whole_expansions(raw: Raw) -> dict[str, StoredTensor]:
    """What makes keys and values of latents as one matrix: newer files have that of keys, transposed in each head, and that
    of values (heads, latent, key size), (heads, value size, latent)."""
    whole = dict(raw)
    for name in [name for name in raw if re.fullmatch(r"blk\.\d+\.attn_k_b\.weight", name)]:
        values = whole.get(name.replace("_k_b", "_v_b"))
        keys = whole.pop(name)
        fits = values is not None and len(keys.shape) == len(values.shape) == 3
        if values is None or not fits or keys.shape[:2] != (values.shape[0], values.shape[2]):
            raise CheckpointError(
                f"{keys.file.path}: GGUF tensor {name!r} has no values' matrix beside it that fits. Fetch the file again."
            )
        del whole[values.name]
        joined = name.replace("_k_b", "_kv_b")
        whole[joined] = _joined_expansion(joined, keys, values)
    return whole


def _joined_expansion(name: str, keys: StoredTensor, values: StoredTensor) -> StoredTensor:
    heads, latent, size = keys.shape

    def compute() -> np.ndarray[Any, np.dtype[np.float32]]:
        parts = (keys.to_float32().swapaxes(1, 2), values.to_float32())
        return np.concatenate(parts, 1).reshape(-1, latent)

    shape = (heads * (size + values.shape[1]), latent)
    return computed_tensor(name, shape, compute, (keys, values), "keys and values of latents")


def _is_of_draft(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is of a layer after the last that a text goes through."""
    layer = re.match(r"blk\.(\d{1,9})\.", name)
    return layer is not None and "num_hidden_layers" in config and int(layer[1]) >= config["num_hidden_layers"] > 0


def family_name_and_layout(
    metadata: Mapping[str, Any], config: Mapping[str, Any], name: str, shape: tuple[int, ...], path: Path
) -> tuple[str, Layout | None]:
    """The family's name for a tensor of GGUF's name and shape, and how it lies in the file."""
    architecture, table = table_of(metadata, path)
    names = T5_PLAIN if config.get("feed_forward_proj") == "relu" else table.names
    stem, _, ending = name.rpartition(".")
    layer = re.search(r"(?:^|\.)blk\.(\d+)\.", name)
    whole, pattern = (part.replace(f"blk.{layer.group(1)}.", "blk.{}.") if layer else part for part in (name, stem))
    if whole in names:  # which has no ending
        pattern = whole
    if pattern not in names:
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has no place in a {architecture} model."
            f"{did_you_mean(pattern, names)} This variant is not supported; choose another file."
        )
    family_name = names[pattern].format(layer.group(1) if layer else "")
    family_name += "" if family_name.endswith((*ENDINGS,)) else f".{ending}"
    return family_name, _layout(table, name, shape, config, path)


def unstacked(stacked: StoredTensor) -> dict[str, StoredTensor]:
    """What one tensor holds for several experts, by the name of each; * stands for the expert's index."""
    count = max(stacked.shape[0], 1)
    size = stacked.size // count
    return {
        (name := stacked.name.replace("*", str(index))): replace(
            stacked, name=name, shape=stacked.shape[1:], offset=stacked.offset + index * size, size=size
        )
        for index in range(stacked.shape[0])
    }


def gguf_name_and_layout(
    table: ArchitectureTable, config: Mapping[str, Any], name: str, shape: tuple[int, ...]
) -> tuple[str, Layout | None]:
    """GGUF's name and layout for a tensor of the family: the inverse of `tensors_from_gguf`. Experts have one name."""
    own = next((ending for whole, ending in ENDINGS.items() if name.endswith(whole)), None)
    stem, ending = (name, own) if own is not None else (name[: name.rindex(".")], name[name.rindex(".") :])
    stem = re.sub(r"\.experts\.\d+\.", ".experts.*.", stem)
    layer = re.search(r"\.(\d+)\.", stem)
    pattern = stem.replace(f".{layer.group(1)}.", ".{}.", 1) if layer else stem
    gguf_name = next(gguf_pattern for gguf_pattern, family_pattern in table.names.items() if family_pattern == pattern)
    gguf_name = f"{gguf_name.format(layer.group(1) if layer else '')}{ending}"
    return gguf_name, _layout(table, gguf_name, shape, config, Path(name))


def _layout(
    table: ArchitectureTable, name: str, shape: tuple[int, ...], config: Mapping[str, Any], path: Path
) -> Layout | None:
    """How a tensor of GGUF's name lies, where that is not how the family has it."""
    queries = config.get("num_attention_heads")
    if table.tiled and (tiled := _tiled(name, config)) is not None:
        return tiled
    if table.folded_norms and re.fullmatch(r"blk\.\d+\.ssm_norm\.weight", name):
        groups: Any = config.get("n_groups", config.get("mamba_n_groups"))
        fits = type(groups) is int and groups > 0 and math.prod(shape) % groups == 0
        return FoldedVector(groups) if fits else None  # and the config is refused
    if table.part_after_part and re.fullmatch(r"blk\.\d+\.attn_qkv\.\w+", name):
        return PartAfterPart(_checked_heads(queries, 3, name, shape[0], path))
    projection = re.fullmatch(r"blk\.\d+\.attn_([qk])\.\w+", name) if table.interleaved else None
    if projection is None:
        return next((layout for pattern, layout in table.layouts.items() if re.fullmatch(pattern, name)), None)
    heads = queries if projection.group(1) == "q" else config.get("num_key_value_heads") or queries
    return InterleavedPairs(_checked_heads(heads, 2, name, shape[0], path))


def _tiled(name: str, config: Mapping[str, Any]) -> Layout | None:
    """How what belongs to the heads of a state lies in a file: in turns, a head of values for each head of keys."""
    keys, values, key_size, size = (
        config.get(f"linear_{part}") for part in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    )
    if not (type(keys) is type(values) is type(key_size) is type(size) is int and keys > 0) or values % keys:
        return None  # the config is refused
    of_values, of_numbers = (TiledHeads(keys, values // keys, width) for width in (size, 1))
    behind_keys = TiledHeads(keys, values // keys, size, 2 * keys * key_size)
    layouts: Mapping[str, Layout] = {
        "attn_qkv": behind_keys, "attn_gate": of_values, "ssm_beta": of_numbers, "ssm_alpha": of_numbers,
        "ssm_dt": of_numbers, "ssm_conv1d": KernelRows(behind_keys), "ssm_a": NegativeExponential(of_numbers),
        "ssm_out": TiledColumns(of_values),
    }  # fmt: skip
    found = re.fullmatch(r"blk\.\d+\.(\w+)(?:\.\w+)?", name)
    layout = layouts.get(found.group(1)) if found else None
    in_order = keys == values and isinstance(layout, TiledHeads | TiledColumns)
    return None if in_order else layout


def _checked_heads(heads: Any, parts: int, name: str, rows: int, path: Path) -> int:
    """How many heads a tensor's rows make, refused where they make none that fall into this many parts."""
    if type(heads) is not int or heads < 1 or rows % (parts * heads):
        what = "pairs in" if parts == 2 else "queries, keys and values of"
        raise CheckpointError(
            f"{path}: GGUF tensor {name!r} has {rows} rows, which do not make {what} {heads} heads "
            "(fields 'attention.head_count' and 'attention.head_count_kv'). Fetch the file again."
        )
    return heads


@dataclass(frozen=True)
class ArchitectureTable:
    names: Mapping[str, str]
    sizes: Mapping[str, str]
    model_type: str
    extra: Callable[[Metadata, Raw], dict[str, Any]] = decoder_fields  # what the tensors show, or no field says
    interleaved: bool = False  # query and key rows have their rotary pairs side by side
    tiled: bool = False  # heads of values stand in turns, one for each head of keys
    folded_norms: bool = False  # of states: the weights of each group are a row
    part_after_part: bool = False  # of a fused projection: all queries, then all keys, then all values
    layouts: Mapping[str, Layout] = field(default_factory=dict)  # by a pattern of GGUF's names
    ignored: frozenset[str] = frozenset({"rope_freqs.weight", *ROPE_FACTORS.values()})  # in the config instead
    routed: ArchitectureTable | None = None  # of the models that have experts, where others are of the same architecture
    sigmoid: ArchitectureTable | None = None  # the same, of those whose experts' shares are made by sigmoids


QWEN35_LAYOUTS: Mapping[str, Layout] = {r"(?!.*ssm_norm).*norm\.weight": OffsetByOne()}
SHORT_CONVOLUTIONS: Mapping[str, Layout] = {r"blk\.\d+\.shortconv\.conv\.weight": KernelRows()}
STATE_SPACE_LAYOUTS: Mapping[str, Layout] = {
    r"blk\.\d+\.ssm_conv1d\.weight": KernelRows(),
    r"blk\.\d+\.ssm_a": FoldedVector(rates=True),
    r"blk\.\d+\.ssm_d": FoldedVector(),
}
TABLES: Mapping[str, ArchitectureTable] = {
    "llama": ArchitectureTable(
        DECODER, DECODER_SIZES, "llama", interleaved=True,
        routed=ArchitectureTable(MIXTRAL, EXPERT_SIZES, "mixtral", mixtral_fields, interleaved=True),
    ),
    "qwen2": ArchitectureTable(DECODER, DECODER_SIZES, "qwen2"),
    "qwen3": ArchitectureTable(
        {**DECODER, **HEAD_NORMS}, DECODER_SIZES, "qwen3",
        ignored=ArchitectureTable.ignored | {"cls.output.weight"},  # a reranker's: rows of its table, for "yes" and "no"
    ),
    "qwen2moe": ArchitectureTable(
        QWEN2_MOE, SHARED_EXPERT_SIZES, "qwen2_moe", qwen2_moe_fields,
        layouts={r"blk\.\d+\.ffn_gate_inp_shexp\.weight": SingleRow()},
    ),
    "qwen3moe": ArchitectureTable({**DECODER, **HEAD_NORMS, **EXPERTS}, EXPERT_SIZES, "qwen3_moe", qwen3_moe_fields),
    "granitemoe": ArchitectureTable(GRANITE_MOE, GRANITE_MOE_SIZES, "granitemoe", interleaved=True),
    "mamba2": ArchitectureTable(
        MAMBA2, MAMBA2_SIZES, "mamba2", mamba2_fields, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
    ),
    "falcon-h1": ArchitectureTable(
        FALCON_H1, FALCON_H1_SIZES, "falcon_h1", falcon_h1_fields, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
    ),
    "nemotron_h": ArchitectureTable(
        NEMOTRON_H, NEMOTRON_H_SIZES, "nemotron_h", nemotron_h_fields, folded_norms=True, layouts=STATE_SPACE_LAYOUTS,
    ),
    "nemotron_h_moe": ArchitectureTable(
        NEMOTRON_H_MOE, NEMOTRON_H_MOE_SIZES, "nemotron_h", nemotron_h_fields, folded_norms=True,
        layouts=STATE_SPACE_LAYOUTS,
    ),
    "qwen35": ArchitectureTable(
        QWEN35, {**DECODER_SIZES, **GATED_DELTA}, "qwen3_5_text", gated_delta_fields, tiled=True, layouts=QWEN35_LAYOUTS,
    ),
    "qwen35moe": ArchitectureTable(
        QWEN35_MOE, {**SHARED_EXPERT_SIZES, **GATED_DELTA}, "qwen3_5_moe_text", gated_delta_fields, tiled=True,
        layouts={**QWEN35_LAYOUTS, r"blk\.\d+\.ffn_gate_inp_shexp\.weight": SingleRow()},
    ),
    "lfm2": ArchitectureTable(LFM2, LFM2_SIZES, "lfm2", lfm2_fields, layouts=SHORT_CONVOLUTIONS),
    "lfm2moe": ArchitectureTable(LFM2_MOE, LFM2_MOE_SIZES, "lfm2_moe", lfm2_moe_fields, layouts=SHORT_CONVOLUTIONS),
    "olmoe": ArchitectureTable({**DECODER, **HEAD_NORMS, **EXPERTS}, EXPERT_SIZES, "olmoe"),
    "gpt-oss": ArchitectureTable(GPT_OSS, GPT_OSS_SIZES, "gpt_oss", gpt_oss_fields),
    "phi3": ArchitectureTable(PHI3, WINDOW_SIZES, "phi3", partly_rotated_fields),
    "olmo2": ArchitectureTable(OLMO2, WINDOW_SIZES, "olmo2", olmo2_fields),
    "exaone4": ArchitectureTable(OLMO2, WINDOW_SIZES, "exaone4", exaone4_fields),
    "glm4": ArchitectureTable(GLM4, DECODER_SIZES, "glm4", partly_rotated_fields),
    "glm4moe": ArchitectureTable(GLM4_MOE, GROUPED_EXPERT_SIZES, "glm4_moe", glm4_moe_fields),
    "deepseek2": ArchitectureTable(
        LATENT, LATENT_SIZES, "deepseek_v2", deepseek_v2_fields,
        sigmoid=ArchitectureTable(LATENT, LATENT_SIZES, "deepseek_v3", latent_fields),
    ),
    "command-r": ArchitectureTable(COHERE, COHERE_SIZES, "cohere"),
    "seed_oss": ArchitectureTable(SEED_OSS, DECODER_SIZES, "seed_oss", seed_oss_fields),
    "ernie4_5": ArchitectureTable(DECODER, DECODER_SIZES, "ernie4_5", ernie_fields),
    "ernie4_5-moe": ArchitectureTable(
        ERNIE_MOE, ERNIE_MOE_SIZES, "ernie4_5_moe", ernie_moe_fields, layouts={r"blk\.\d+\.exp_probs_b\.bias": SingleRow()},
    ),
    "minimax-m2": ArchitectureTable(MINIMAX, WHOLE_EXPERT_SIZES, "minimax_m2", partly_rotated_fields),
    "hunyuan-dense": ArchitectureTable(HUNYUAN, DECODER_SIZES, "hunyuan_v1_dense"),
    "arcee": ArchitectureTable(ARCEE, DECODER_SIZES, "arcee", interleaved=True),
    "stablelm": ArchitectureTable(DECODER, STABLELM_SIZES, "stablelm", stablelm_fields),
    "phi2": ArchitectureTable(PHI2, LAYER_NORM_SIZES, "phi", partly_rotated_fields),
    "nemotron": ArchitectureTable(
        ARCEE, NEMOTRON_SIZES, "nemotron", partly_rotated_fields, layouts={r".*norm\.weight": OffsetByOne()}
    ),
    "olmo": ArchitectureTable(OLMO, OLMO_SIZES, "olmo", interleaved=True),
    "starcoder": ArchitectureTable(GPT2, STARCODER_SIZES, "gpt_bigcode", lambda *_: {}),
    "bloom": ArchitectureTable(BLOOM, BLOOM_SIZES, "bloom", lambda *_: {}, part_after_part=True),
    "mpt": ArchitectureTable(MPT, MPT_SIZES, "mpt", mpt_fields),
    "granite": ArchitectureTable(DECODER, GRANITE_SIZES, "granite", interleaved=True),
    "smollm3": ArchitectureTable(DECODER, DECODER_SIZES, "smollm3", interleaved=True),
    "starcoder2": ArchitectureTable(STARCODER2, STARCODER2_SIZES, "starcoder2", starcoder2_fields),
    "gptneox": ArchitectureTable(GPTNEOX, GPTNEOX_SIZES, "gpt_neox", gptneox_fields, part_after_part=True),
    "gemma": ArchitectureTable(DECODER, DECODER_SIZES, "gemma", layouts={r".*norm\.weight": OffsetByOne()}),
    "gemma2": ArchitectureTable(
        GEMMA2, GEMMA_SIZES, "gemma2", gemma2_fields, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gemma3": ArchitectureTable(
        GEMMA3, GEMMA_SIZES, "gemma3_text", gemma3_fields, layouts={r".*norm\.weight": OffsetByOne()},
    ),
    "gemma-embedding": ArchitectureTable(
        GEMMA3, GEMMA_SIZES, "embedding_gemma", gemma3_fields, layouts={r".*norm\.weight": OffsetByOne()},
        ignored=frozenset({"dense_2.weight", "dense_3.weight"}),  # of its vectors: `sentence_pooling`
    ),
    "eurobert": ArchitectureTable(DECODER, DECODER_SIZES, "eurobert"),
    "gemma4": ArchitectureTable(GEMMA4, GEMMA4_SIZES, "gemma4_text", gemma4_fields),
    "gpt2": ArchitectureTable(
        GPT2, {**SIZES, "attention.layer_norm_epsilon": "layer_norm_epsilon"}, "gpt2", lambda *_: {},
        layouts={r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight": Transposed()},
    ),
    "bert": ArchitectureTable(BERT, {**SIZES, "attention.layer_norm_epsilon": "layer_norm_eps"}, "bert", bert_fields),
    "modern-bert": ArchitectureTable(
        MODERN_BERT, MODERN_BERT_SIZES, "modernbert", modern_bert_fields,
        ignored=frozenset(f"cls{part}.{kind}" for part in ("", ".norm", ".output") for kind in ("weight", "bias")),  # a head
    ),
    "t5": ArchitectureTable(T5, T5_SIZES, "t5", t5_fields, ignored=frozenset({"dec.blk.0.cross_attn_rel_b.weight"})),
}  # fmt: skip


def model_type_of(metadata: Mapping[str, Any], path: Path) -> str:
    """The family that a file's architecture is."""
    return table_of(metadata, path)[1].model_type


def table_of(metadata: Mapping[str, Any], path: Path) -> tuple[str, ArchitectureTable]:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in TABLES:
        raise CheckpointError(
            f"{path}: GGUF field 'general.architecture' is {architecture!r}, which is not known."
            f"{did_you_misspell(str(architecture), TABLES)} Known: {', '.join(TABLES)}."
        )
    table = TABLES[architecture]
    if table.sigmoid is not None and metadata.get(f"{architecture}.expert_gating_func") == SIGMOID:
        return architecture, table.sigmoid
    return architecture, table.routed if table.routed and metadata.get(f"{architecture}.expert_count") else table


def table_for(architecture: str, model_type: str) -> ArchitectureTable:
    """The table of an architecture's models of a type."""
    table = TABLES[architecture]
    others = (other for other in (table.routed, table.sigmoid) if other is not None)
    return next((other for other in others if other.model_type == model_type), table)
