"""Fields of a config that GGUF's metadata has in another form.

Each reader gets the metadata and the tensors, since a bias that is there says more than any field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from glassformer.checkpoint.stored_tensors import StoredTensor

SIGMOID = 2  # of expert_gating_func

ROPE_FACTORS = {"short_factor": "rope_factors_short.weight", "long_factor": "rope_factors_long.weight"}  # of longrope

Metadata: TypeAlias = Mapping[str, Any]  # without the architecture's name in front

Raw: TypeAlias = Mapping[str, StoredTensor]


def has_experts(metadata: Metadata) -> bool:
    return bool(metadata.get("expert_count"))


def has_shared_expert(metadata: Metadata) -> bool:
    return bool(metadata.get("expert_shared_feed_forward_length"))


def shares_by_sigmoids(metadata: Metadata) -> bool:
    return bool(metadata.get("expert_gating_func") == SIGMOID)


def has_no_multipliers(metadata: Metadata) -> bool:
    """Which Granite's models have, and others of their architecture do not."""
    return not {"embedding_scale", "residual_scale", "logit_scale"} & metadata.keys()


def decoder(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    biases = {"attention_bias": "blk.0.attn_q.bias" in raw, "mlp_bias": "blk.0.ffn_up.bias" in raw}
    return {**biases, "rope_scaling": _rope_scaling(metadata, raw)}


def partly_rotated(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """The share of a head that is rotated, where a file says how many numbers that is."""
    rotated, size = metadata.get("rope.dimension_count"), metadata.get("attention.key_length") or head_width(metadata)
    share = rotated / size if isinstance(rotated, int) and isinstance(size, int) and size > 0 else 1.0
    return {**decoder(metadata, raw), "partial_rotary_factor": share}


def head_width(metadata: Metadata) -> int | None:
    """The width of a head, where all heads together are as wide as the stream."""
    width, heads = metadata.get("embedding_length"), metadata.get("attention.head_count")
    return width // heads if isinstance(width, int) and isinstance(heads, int) and heads > 0 else None


def gptneox(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return partly_rotated(metadata, raw) | {"attention_bias": "blk.0.attn_qkv.bias" in raw}


def stablelm(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    biases = {"use_qkv_bias": "blk.0.attn_q.bias" in raw, "attention_bias": None}
    return {**partly_rotated(metadata, raw), **biases, "qk_layernorm": "blk.0.attn_q_norm.weight" in raw}


def starcoder2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"use_bias": "blk.0.attn_q.bias" in raw, "rope_scaling": _rope_scaling(metadata, raw)}


def falcon(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Of one group of keys, or of a group for each head, is the first architecture; a second norm is of the newer one."""
    groups, heads = metadata.get("attention.head_count_kv", 1), metadata.get("attention.head_count")
    two = "blk.0.attn_norm_2.weight" in raw
    own: dict[str, Any] = {"bias": "blk.0.attn_qkv.bias" in raw, "rope_scaling": _rope_scaling(metadata, raw)}
    if not two and groups in (1, heads):
        return own | {"multi_query": groups == 1}
    return own | {"new_decoder_architecture": True, "num_kv_heads": groups, "num_ln_in_parallel_attn": 2 if two else 1}


def mpt(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    largest = metadata.get("attention.max_alibi_bias", 8)
    largest = int(largest) if isinstance(largest, float) and largest.is_integer() else largest
    return {"attn_config": {"alibi_bias_max": largest, "clip_qkv": metadata.get("attention.clamp_kqv")}}


def ernie(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"use_bias": "blk.0.attn_q.bias" in raw, "rope_scaling": _rope_scaling(metadata, raw)}


def ernie_moe(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {**ernie(metadata, raw), **without_drafts(metadata)}


def seed_oss(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return decoder(metadata, raw) | {"attention_out_bias": "blk.0.attn_output.bias" in raw}


def exaone4(metadata: Metadata, raw: Raw) -> dict[str, Any]:
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


def cohere2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return decoder(metadata, raw) | {"sliding_window_pattern": metadata.get("attention.sliding_window_pattern", 4)}


def mistral3(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its scores grow with the position as its files say; where RoPE is stretched, they say how sharp it is."""
    own, beta = decoder(metadata, raw), shortest_float(metadata.get("attention.temperature_scale"))
    rope = own["rope_scaling"] or {"rope_type": "default"}
    sharper = shortest_float(metadata.get("rope.scaling.yarn_log_multiplier"))
    for name in ("beta_fast", "beta_slow"):
        if (value := metadata.get(f"rope.scaling.yarn_{name}")) is not None:
            rope[name] = shortest_float(value)
    rope |= {} if not sharper else {"mscale": 1.0, "mscale_all_dim": sharper}
    trained = {"original_max_position_embeddings": metadata.get("rope.scaling.original_context_length")}
    rope |= {} if not beta else {"llama_4_scaling_beta": beta, **trained}
    return own | {"rope_scaling": rope}


def apertus(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Where a file says nothing of RoPE, it is as it is; a config's default stretches it."""
    own = decoder(metadata, raw)
    return own | {"rope_scaling": own["rope_scaling"] or {"rope_type": "default"}}


def llama4(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Much of it no file says: chunks, layers without RoPE, and that only the model of 128 experts does not norm heads.
    A window of none: all layers see everything, and know positions."""
    own = {**decoder(metadata, raw), "use_qk_norm": metadata.get("expert_count") != 128}
    layers = metadata.get("block_count")
    if metadata.get("attention.sliding_window") == 0 and isinstance(layers, int) and layers <= len(raw):
        own |= {"layer_types": ["full_attention"] * layers, "no_rope_layers": [1] * layers}
    return own


def olmo2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """OLMo 3 is a file of OLMo 2 that has windows."""
    if not metadata.get("attention.sliding_window"):
        return decoder(metadata, raw)
    theta = shortest_float(metadata.get("rope.freq_base"))  # of all layers
    local = {"rope_type": "default"} if theta is None else {"rope_type": "default", "rope_theta": theta}
    ropes = {"rope_parameters": {"sliding_attention": local}}
    return {**decoder(metadata, raw), **ropes, "model_type": "olmo3",
        "layer_types": _kinds(metadata.get("attention.sliding_window_pattern")),
    }  # fmt: skip


def _query_scalar(metadata: Metadata, largest: int) -> dict[str, Any]:
    """What Gemma's files leave unsaid: its largest model scales by the width of a head as others have it."""
    scalar = metadata.get("attention.key_length")
    if metadata.get("block_count") == largest:
        scalar = head_width(metadata) or scalar
    return {} if scalar is None else {"query_pre_attn_scalar": scalar}


def gemma2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return decoder(metadata, raw) | _query_scalar(metadata, largest=46)


def gemma3(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    pattern = metadata.get("attention.sliding_window_pattern", 6) if metadata.get("attention.sliding_window") else 1
    return {
        **decoder(metadata, raw),
        **_query_scalar(metadata, largest=62),
        "rope_local_base_freq": metadata.get("rope.freq_base_swa", 10_000.0),
        "sliding_window_pattern": pattern,  # 1: every layer sees everything
    }


def gemma4(metadata: Metadata, raw: Raw) -> dict[str, Any]:
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
        **({"enable_moe_block": True} if has_experts(metadata) else {}),
    }


def gemma3n(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Shares of shut neurons are in files as where a normal distribution has them below."""
    table, low = raw.get("per_layer_token_embd.weight"), raw.get("blk.0.laurel_l.weight")
    scales, theta = metadata.get("activation_sparsity_scale"), metadata.get("rope.freq_base_swa", 1e4)
    full, local = (
        {"rope_type": "default", "rope_theta": shortest_float(base)} for base in (metadata.get("rope.freq_base", 1e6), theta)
    )
    own: dict[str, Any] = {
        "attention_bias": "blk.0.attn_q.bias" in raw,
        "layer_types": _kinds(metadata.get("attention.sliding_window_pattern")),
        "intermediate_size": metadata.get("feed_forward_length"),
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }
    if isinstance(scales, list) and all(isinstance(scale, float) for scale in scales):
        own["activation_sparsity_pattern"] = [round(0.5 + 0.5 * math.erf(scale / math.sqrt(2)), 6) for scale in scales]
    own |= {} if table is None else {"vocab_size_per_layer_input": table.shape[0]}
    return own | ({} if low is None else {"laurel_rank": low.shape[0]})


def lfm2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
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


def lfm2_moe(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers always make shares add up to one, and scale none of them."""
    corrected = any(name.endswith(".exp_probs_b.bias") for name in raw)
    own = {name: value for name, value in lfm2(metadata, raw).items() if name != "block_auto_adjust_ff_dim"}
    return {**own, "use_expert_bias": corrected, "norm_topk_prob": True}


def mixtral(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    return {"rope_scaling": _rope_scaling(metadata, raw)}


def qwen3_moe(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers always make shares add up to one; a layer may be without experts."""
    dense = sorted(int(name.split(".")[1]) for name in raw if name.endswith(".ffn_gate.weight"))
    return {**decoder(metadata, raw), "norm_topk_prob": True, "mlp_only_layers": dense}


def qwen2_moe(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """Its other readers never make shares add up to one."""
    return {**qwen3_moe(metadata, raw), "norm_topk_prob": False}


def without_drafts(metadata: Metadata, drafts_field: str = "num_nextn_predict_layers") -> dict[str, Any]:
    """The layers that a text goes through: a file counts those that guess further tokens, too, which come after them."""
    count, drafts = metadata.get("block_count"), metadata.get("nextn_predict_layers")
    if not isinstance(count, int) or not isinstance(drafts, int) or not 0 < drafts < count:
        return {}
    return {"num_hidden_layers": count - drafts, drafts_field: drafts}


def gated_delta(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """How wide a state's heads are follows from all of them together."""
    inner, heads = metadata.get("ssm.inner_size"), metadata.get("ssm.time_step_rank")
    own = {**partly_rotated(metadata, raw), **without_drafts(metadata, "mtp_num_hidden_layers")}
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        own["linear_value_head_dim"] = inner // heads
    return own


def mamba2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """How wide heads are follows from all of them together; biases are there or not."""
    inner, heads, hidden = (metadata.get(key) for key in ("ssm.inner_size", "ssm.time_step_rank", "embedding_length"))
    own: dict[str, Any] = {"use_bias": "blk.0.ssm_in.bias" in raw, "use_conv_bias": "blk.0.ssm_conv1d.bias" in raw}
    if isinstance(inner, int) and isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
        own |= {"head_dim": inner // heads, "expand": inner // hidden}
    return own


def falcon_h1(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """A file has no multipliers: they are parts of its matrices. What is normed of a state is normed behind its gate."""
    own = {**decoder(metadata, raw), "mamba_norm_before_gate": False}
    named = {"mamba_rms_norm": "ssm_norm.weight", "mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}
    own |= {field: f"blk.0.{tensor}" in raw for field, tensor in {**named, "projectors_bias": "ssm_out.bias"}.items()}
    inner, heads = metadata.get("ssm.inner_size"), metadata.get("ssm.time_step_rank")
    if isinstance(inner, int) and isinstance(heads, int) and heads > 0:
        own |= {"mamba_d_ssm": inner, "mamba_d_head": inner // heads}
    return own


def granite_hybrid(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """A layer without heads of keys keeps a state. Attention knows positions unless a file says that it does not."""
    own = {**decoder(metadata, raw), **_states_beside_attention(metadata, raw)}
    groups, count = metadata.get("attention.head_count_kv"), metadata.get("block_count")
    if not isinstance(groups, list):
        groups = [groups] * count if isinstance(count, int) and 0 < count <= len(raw) else []  # each has a tensor
    own["layer_types"] = ["full_attention" if count else "linear_attention" for count in groups]
    if not has_experts(metadata):  # whose size is then no larger than that of the MLP
        inner = metadata.get("feed_forward_length", 1)
        own |= {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": inner}
    own["position_embedding_type"] = "rope" if metadata.get("rope.scaling.finetuned", True) else "nope"
    return own


def bamba(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    groups = metadata.get("attention.head_count_kv")
    attending = [layer for layer, count in enumerate(groups) if count] if isinstance(groups, list) else None
    return {
        **partly_rotated(metadata, raw), **_states_beside_attention(metadata, raw), "attn_layer_indices": attending,
        "mlp_bias": "blk.0.ffn_up.bias" in raw,
    }  # fmt: skip


def _states_beside_attention(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """The sizes of Mamba-2's states where other layers attend, and which biases are in the file."""
    own: dict[str, Any] = {}
    groups = metadata.get("attention.head_count_kv")
    own["num_key_value_heads"] = max(groups, default=0) if isinstance(groups, list) else groups
    for part, name in (("attn_q", "attention_bias"), ("ssm_conv1d", "mamba_conv_bias"), ("ssm_in", "mamba_proj_bias")):
        own[name] = any(re.fullmatch(rf"blk\.\d+\.{part}\.bias", tensor) for tensor in raw)
    inner, heads, hidden = (metadata.get(key) for key in ("ssm.inner_size", "ssm.time_step_rank", "embedding_length"))
    if isinstance(inner, int) and isinstance(heads, int) and isinstance(hidden, int) and heads > 0 and hidden > 0:
        own |= {"mamba_d_head": inner // heads, "mamba_expand": inner // hidden}
    return own


def nemotron_h(metadata: Metadata, raw: Raw) -> dict[str, Any]:
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


def glm4_moe(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    own = {**partly_rotated(metadata, raw), **without_drafts(metadata)}
    return {**own, "use_qk_norm": "blk.0.attn_q_norm.weight" in raw}


def latent(metadata: Metadata, raw: Raw) -> dict[str, Any]:
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


def kimi_linear(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    """A layer without heads of keys has a state, with as many heads as others attend with. Its other readers always make
    shares add up to one."""
    counts = metadata.get("attention.head_count_kv")
    kinds = ["full_attention" if count else "linear_attention" for count in counts] if isinstance(counts, list) else None
    own = {"linear_num_heads": metadata.get("attention.head_count"), "norm_topk_prob": True, "layer_types": kinds}
    return {**latent(metadata, raw), **own}


def deepseek_v2(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    grouped = (metadata.get("expert_group_count") or 1) > 1
    return {**latent(metadata, raw), "topk_method": "group_limited_greedy" if grouped else "greedy"}


def gpt_oss(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    scaling = _rope_scaling(metadata, raw)
    return {"rope_scaling": scaling and {**scaling, "truncate": False}}  # as its config has it; no field says so


def bert(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    types = raw.get("token_types.weight")
    return {} if types is None else {"type_vocab_size": types.shape[0]}


def modern_bert(metadata: Metadata, raw: Raw) -> dict[str, Any]:
    biased = {"norm_bias": "output_norm", "attention_bias": "blk.0.attn_qkv", "mlp_bias": "blk.0.ffn_up"}
    return {name: f"{tensor}.bias" in raw for name, tensor in biased.items()}


def t5(metadata: Metadata, raw: Raw) -> dict[str, Any]:
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
