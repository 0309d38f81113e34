"""GGUF's metadata and the fields of a config: tables of those that only have another name, and readers of the others.

A reader gets the metadata and the tensors: a bias that is there says more than any field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from glassformer.checkpoint.stored_tensors import StoredTensor

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
WINDOW_SIZES = {**DECODER_SIZES, "attention.sliding_window": "sliding_window"}
GRANITE_SIZES = {
    **DECODER_SIZES,
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
STARCODER2_SIZES = {
    **{key: name for key, name in DECODER_SIZES.items() if name != "rms_norm_eps"},
    "attention.layer_norm_epsilon": "norm_epsilon",
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


def starcoder2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"use_bias": "blk.0.attn_q.bias" in raw, "rope_scaling": _rope_scaling(metadata, raw)}


def olmo2_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """OLMo 3 is a file of OLMo 2 that has windows."""
    if not metadata.get("attention.sliding_window"):
        return decoder_fields(metadata, raw)
    pattern = metadata.get("attention.sliding_window_pattern")
    kinds = ["sliding_attention" if local else "full_attention" for local in pattern] if isinstance(pattern, list) else None
    theta = shortest_float(metadata.get("rope.freq_base"))  # of all layers
    local = {"rope_type": "default"} if theta is None else {"rope_type": "default", "rope_theta": theta}
    ropes = {"rope_parameters": {"sliding_attention": local}}
    return {**decoder_fields(metadata, raw), **ropes, "model_type": "olmo3", "layer_types": kinds}


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


def mixtral_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"rope_scaling": _rope_scaling(metadata, raw)}


def qwen3_moe_fields(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers always make shares add up to one; a layer may be without experts."""
    dense = sorted(int(name.split(".")[1]) for name in raw if name.endswith(".ffn_gate.weight"))
    return {**decoder_fields(metadata, raw), "norm_topk_prob": True, "mlp_only_layers": dense}


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
    return {"feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in raw else "relu"}


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
    return {
        "rope_type": kind,
        "factor": shortest_float(metadata.get("rope.scaling.factor")),
        "original_max_position_embeddings": trained,
    }


def shortest_float(value: Any) -> Any:
    """A number as it was before it became a float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value
