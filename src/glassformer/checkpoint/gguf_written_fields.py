"""What GGUF's metadata has of a config in another form, and what it has no place for: the inverse of `gguf_fields`."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from statistics import NormalDist
from typing import Any, TypeAlias


def nothing(config: Any) -> dict[str, Any]:
    """Nothing more than the table of sizes."""
    return {}


Refusal: TypeAlias = Callable[[Any], str | None]  # why a file has no place for what a config says, if it has none


def refusing(reason: str, when: Callable[[Any], bool]) -> Refusal:
    """`reason`: with a place for the family's name."""
    return lambda config: reason.format(config.model_type) if when(config) else None


takes_all = refusing("", lambda c: False)
without_limits = refusing(
    "GGUF has no place for the limit of queries, keys and values of an {} model.", lambda c: c.clip_qkv is not None
)
without_head_norms = refusing(
    "GGUF has no place for the norms of queries and keys of a {} model.", lambda c: bool(c.qk_layernorm)
)
with_experts_everywhere = refusing(
    "GGUF has no place for layers without experts in a {} model.", lambda c: len(c.routed_layers) < c.num_hidden_layers
)
without_mlps = refusing(
    "GGUF has no place for MLPs or their biases in a Nemotron-H model with experts.",
    lambda c: "mlp" in c.layer_types or c.mlp_bias,
)
newer_falcons = refusing(
    "GGUF has a place for {} models with RoPE, without biases, with attention and MLP side by side, and for no others.",
    lambda c: c.alibi or c.bias or not c.parallel_attn,
)


def gemma3(config: Any) -> dict[str, Any]:
    return {"rope.freq_base_swa": float(config.local_rope.theta), **_period(config, usual=6)}


def _period(config: Any, usual: int) -> dict[str, Any]:
    """Every how many layers one sees everything, where that is not as usual."""
    kinds = config.layer_types
    period = next((n for n in (usual, *range(1, len(kinds) + 2)) if kinds == _every(n, len(kinds))), usual)
    return {} if period == usual else {"attention.sliding_window_pattern": period}


cohere2 = partial(_period, usual=4)


def local_layers(config: Any) -> dict[str, Any]:
    """Of each layer whether it looks back over a window, where any does."""
    layers = range(config.num_hidden_layers)
    if not any(config.window(layer) for layer in layers):
        return {}
    return {"attention.sliding_window_pattern": [config.is_local(layer) for layer in layers]}


def mpt(config: Any) -> dict[str, Any]:
    limit = {} if config.clip is None else {"attention.clamp_kqv": float(config.clip)}
    return {"attention.max_alibi_bias": float(config.attn_config["alibi_bias_max"]), **limit}


def falcon(config: Any) -> dict[str, Any]:
    return {"attention.head_count_kv": config.groups, "context_length": config.context}


def lfm2(config: Any) -> dict[str, Any]:
    groups = config.num_key_value_heads
    return {"attention.head_count_kv": [groups if config.is_full(n) else 0 for n in range(config.num_hidden_layers)]}


def mamba2(config: Any) -> dict[str, Any]:
    """It has neither an MLP nor heads that attend."""
    return {**inner_states(config), "feed_forward_length": 0, "attention.head_count": 0}


def inner_states(config: Any) -> dict[str, Any]:
    return {"ssm.inner_size": config.state_space.inner}


def mistral3(config: Any) -> dict[str, Any]:
    rope, scale = config.rope, config.position_scale
    grows = {} if scale is None else {"attention.temperature_scale": float(scale.beta)}
    sharper = {} if not rope.mscale_all_dim else {"rope.scaling.yarn_log_multiplier": float(rope.mscale_all_dim)}
    betas = {f"rope.scaling.yarn_{name}": float(getattr(rope, name)) for name in ("beta_fast", "beta_slow")}
    return {**grows, **sharper, **(betas if rope.kind == "yarn" else {})}


def gemma4(config: Any) -> dict[str, Any]:
    """What may differ from layer to layer, listed where it does."""
    layers, size = range(config.num_hidden_layers), config.head_dim
    several: dict[str, list[int]] = {
        "feed_forward_length": [config.inner(layer) for layer in layers],
        "attention.head_count_kv": [config.key_heads(layer) for layer in layers],
    }
    return {
        "attention.value_length": config.global_head_dim,
        "attention.value_length_swa": size,
        "rope.dimension_count": config.global_head_dim,
        "rope.dimension_count_swa": size,
        "rope.freq_base_swa": float(config.local_rope.theta),
        "attention.sliding_window_pattern": [config.is_local(layer) for layer in layers],
        **{name: counts if len(set(counts)) > 1 else counts[0] for name, counts in several.items()},
    }


def as_readers_take_gemma3n(config: Any) -> str | None:
    """What its readers do not ask a file for."""
    layers = config.num_hidden_layers
    taken = {
        "altup_active_idx": (config.altup_active_idx, 0),
        "altup_num_inputs": (config.altup_num_inputs, 4),
        "num_kv_shared_layers": (config.num_kv_shared_layers, max(layers - 20, 0)),
        "activation_sparsity_pattern": ([*config.activation_sparsity_pattern], ([0.95] * 10 + [0.0] * layers)[:layers]),
        "final_logit_softcapping": (config.final_logit_softcapping, 30.0),
    }
    for field, (value, read) in taken.items():
        if value != read:
            return f"GGUF's readers take {field}={read} of a gemma3n_text model of {layers} layers, not {value}."
    return None


def gemma3n(config: Any) -> dict[str, Any]:
    layers, normal = range(config.num_hidden_layers), NormalDist()
    inner = [config.inner(layer) for layer in layers]
    shut = [config.sparsity(layer) for layer in layers]
    return {
        "feed_forward_length": inner if len(set(inner)) > 1 else inner[0],
        "rope.freq_base_swa": float(config.local_rope.theta),
        "attention.sliding_window_pattern": [config.is_local(layer) for layer in layers],
        "activation_sparsity_scale": [normal.inv_cdf(share) if share else -math.inf for share in shut],
    }


def nemotron_h(config: Any) -> dict[str, Any]:
    """What a block is, by numbers that are 0 where it has no such part."""
    inner = {"mlp": config.intermediate_size, "moe": config.moe_intermediate_size}
    groups = {"full_attention": config.num_key_value_heads}
    return {
        "attention.value_length": config.head_dim,
        "attention.head_count_kv": [groups.get(kind, 0) for kind in config.layer_types],
        "feed_forward_length": [inner.get(kind, 0) for kind in config.layer_types],
        "ssm.inner_size": config.state_space.inner,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
    }


def states_beside_attention(config: Any) -> dict[str, Any]:
    """Heads of keys are 0 where a layer keeps a state; a file says whether attention knows positions."""
    layers = range(config.num_hidden_layers)
    granite = config.model_type == "granitemoehybrid"
    attends = [
        config.layer_types[n] == "full_attention" if granite else n in (config.attn_layer_indices or ()) for n in layers
    ]
    return {
        "attention.head_count_kv": [config.num_key_value_heads if full else 0 for full in attends],
        "ssm.inner_size": config.state_space.inner,
        "rope.scaling.finetuned": bool(config.ropes),
    }


def states_as_readers_take_them(config: Any) -> str | None:
    kind = config.model_type
    if config.mamba_proj_bias:
        return f"GGUF has no place for the projection biases of a {kind} model."
    if kind == "bamba" and config.rope.rotary_size(config.head_dim) < config.head_dim:
        return "GGUF's readers take other pairs of a bamba model's heads that are partly rotated."
    if not config.ropes and "linear_attention" not in (config.layer_types or ()):
        return f"GGUF has no place for a {kind} model without states and positions."
    if config.mamba_n_groups > 1:
        return (
            f"GGUF's readers norm each group of a state's heads by itself, and a {kind} model all {config.mamba_n_groups} "
            "groups together."
        )
    return None


def kimi_linear(config: Any) -> dict[str, Any]:
    """The sizes of what heads see, and of what is remembered, as if it were one head's key and value; no head of keys where
    a layer keeps a state."""
    return {
        "attention.head_count_kv": [int(config.is_full(layer)) for layer in range(config.num_hidden_layers)],
        "attention.key_length": config.kv_lora_rank + config.qk_rope_head_dim,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_head_dim,
        "attention.value_length_mla": config.v_head_dim,
        "leading_dense_block_count": min(config.routed_layers, default=config.num_hidden_layers),
    }


def gated_delta(config: Any) -> dict[str, Any]:
    full = [config.is_full(layer) for layer in range(config.num_hidden_layers)]
    period = next((n for n in range(1, len(full) + 2) if full == [(layer + 1) % n == 0 for layer in range(len(full))]), 4)
    return {"full_attention_interval": period, "ssm.inner_size": config.value_columns}


def qwen35(config: Any) -> dict[str, Any]:
    pairs = config.rope.rotary_size(config.head_dim) // 2
    sections = [11, 11, 10, 0] if pairs == 32 else [pairs, 0, 0, 0]  # of axes, which are one in a text
    return {**gated_delta(config), "rope.dimension_sections": sections}


def _every(period: int, layers: int) -> list[str]:
    return ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)]
