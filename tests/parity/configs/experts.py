"""Decoders whose MLP is a mixture of experts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.parity.configs.decoders import DECODER_HEADS, ROPES, SMALL

EXPERTS: dict[str, Any] = {"num_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1}
GROUPED: dict[str, Any] = {
    "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 36, "n_shared_experts": 2, "n_group": 3,
    "topk_group": 2, "routed_scaling_factor": 1.7, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT: dict[str, Any] = {
    **{name: value for name, value in SMALL.items() if name != "head_dim"},
    "num_key_value_heads": 4, "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14,
}  # fmt: skip
YARN: dict[str, Any] = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 32,
    "beta_slow": 1, "mscale": 0.9, "mscale_all_dim": 0.7,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    "mixtral": {**SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1},
    "qwen3_moe": {**SMALL, **EXPERTS, "moe_intermediate_size": 36, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "qwen2_moe": {
        **{name: size for name, size in SMALL.items() if name != "head_dim"}, **EXPERTS, "moe_intermediate_size": 36,
        "shared_expert_intermediate_size": 44, "mlp_only_layers": [1],
    },
    "olmoe": {
        **{name: size for name, size in SMALL.items() if name != "head_dim"}, **EXPERTS, "num_experts_per_tok": 3,
        "clip_qkv": 0.7,
    },
    "gpt_oss": {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1, "sliding_window": 5,
        "swiglu_limit": 0.8,
    },
    "glm4_moe": {
        **SMALL, **GROUPED, "use_qk_norm": True, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "deepseek_v2": {**LATENT, **GROUPED, "q_lora_rank": None, "topk_method": "group_limited_greedy"},
    "deepseek_v3": {**LATENT, **GROUPED, "q_lora_rank": 20, "rope_parameters": YARN},
    "glm4_moe_lite": {
        **LATENT, **{name: value for name, value in GROUPED.items() if name != "first_k_dense_replace"}, "q_lora_rank": 20,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
    "llama4_text": {
        **SMALL, "intermediate_size": 36, "intermediate_size_mlp": 80, "num_local_experts": 5, "num_experts_per_tok": 2,
        "moe_layers": [0, 2], "no_rope_layers": [1, 0, 1], "attention_chunk_size": 5, "router_aux_loss_coef": 0.1,
    },
    "minimax_m2": {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1,
        "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "ernie4_5_moe": {
        **SMALL, "moe_num_experts": 5, "moe_k": 2, "router_aux_loss_coef": 0.1, "moe_intermediate_size": 36,
        "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    },
    "granitemoe": {
        **SMALL, "num_local_experts": 5, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.1, "embedding_multiplier": 6.0,
        "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 3.0,
    },
}  # fmt: skip
NOT_ON_GPU = dict.fromkeys(TINY, "has experts")
NOT_SPLIT = {**dict.fromkeys(TINY, "it has experts"), "olmoe": "q_norm needs all of what would be divided"}
NOT_SPLIT |= {
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), "all heads read one latent"),
    "minimax_m2": "q_norm needs all of what would be divided",
}
HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mixtral", "qwen3_moe", "qwen2_moe", "gpt_oss"), DECODER_HEADS),
    **dict.fromkeys(("olmoe", "glm4_moe", "glm4_moe_lite", "minimax_m2", "ernie4_5_moe", "llama4_text", "granitemoe"),
                    ("base", "causal")),
    "deepseek_v2": ("base", "causal", "sequence"), "deepseek_v3": ("base", "causal", "sequence", "token"),
}  # fmt: skip


def _experts(draw: random.Random, **own: Any) -> dict[str, Any]:
    groups = draw.choice([1, 2, 3])
    heads = groups * draw.choice([1, 2, 3])
    experts = draw.choice([2, 3, 7])
    rope = draw.choice([{"rope_type": "default", "rope_theta": draw.choice([500.0, 10000.0, 1e6])}, *ROPES])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([4, 8, 16]),
        "intermediate_size": draw.choice([24, 56]), "num_hidden_layers": draw.randint(1, 4), "num_attention_heads": heads,
        "num_key_value_heads": groups, "tie_word_embeddings": draw.random() < 0.5, "rope_parameters": rope,
        "rms_norm_eps": draw.choice([1e-5, 1e-6]), "num_experts": experts,
        "num_experts_per_tok": draw.randint(1, experts), **own,
    }  # fmt: skip


def _mixtral(draw: random.Random) -> dict[str, Any]:
    config = _experts(draw, sliding_window=draw.choice([None, 7]), head_dim=draw.choice([4, 8, 16]))
    return {**config, "num_local_experts": config.pop("num_experts")}


def _qwen3_moe(draw: random.Random) -> dict[str, Any]:
    return _experts(
        draw, head_dim=draw.choice([4, 8, 16]), attention_bias=draw.random() < 0.4, norm_topk_prob=draw.random() < 0.5,
        moe_intermediate_size=draw.choice([8, 40]), decoder_sparse_step=draw.choice([1, 1, 2]),
        mlp_only_layers=draw.choice([None, [0]]), use_sliding_window=draw.random() < 0.5, sliding_window=7,
    )  # fmt: skip


def _qwen2_moe(draw: random.Random) -> dict[str, Any]:
    layers = draw.randint(1, 4)
    mixed = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    windows = draw.choice([{"use_sliding_window": False}, {}, {"layer_types": mixed}])
    return _experts(
        draw, qkv_bias=draw.random() < 0.6, norm_topk_prob=draw.random() < 0.5, moe_intermediate_size=draw.choice([8, 40]),
        shared_expert_intermediate_size=draw.choice([8, 56]), decoder_sparse_step=draw.choice([1, 1, 2]),
        mlp_only_layers=draw.choice([None, [0]]), num_hidden_layers=layers, max_window_layers=draw.choice([2, 28]),
        **{"use_sliding_window": True, "sliding_window": 7, **windows},
    )  # fmt: skip


def _olmoe(draw: random.Random) -> dict[str, Any]:
    return _experts(
        draw, norm_topk_prob=draw.random() < 0.5, attention_bias=draw.random() < 0.4,
        clip_qkv=draw.choice([None, 0.1, 0.8]),
    )  # fmt: skip


def _gpt_oss(draw: random.Random) -> dict[str, Any]:
    config = _experts(draw, head_dim=draw.choice([4, 8, 16]), sliding_window=draw.choice([3, 7]),
                      swiglu_limit=draw.choice([0.3, 7.0]), attention_bias=draw.random() < 0.7)  # fmt: skip
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(config["num_hidden_layers"])]
    own = draw.choice([{}, {"layer_types": kinds}, {"rope_parameters": None}])
    return {**config, "num_local_experts": config.pop("num_experts"), **own}


def _grouped(draw: random.Random, **own: Any) -> dict[str, Any]:
    """Experts in groups, a few of which are kept; and some that all tokens go to."""
    groups, size = draw.choice([(1, 5), (2, 3), (4, 2)])
    kept = draw.randint(1, groups)
    config = _experts(
        draw, n_group=groups, topk_group=kept, num_experts_per_tok=draw.randint(1, kept * size),
        n_shared_experts=draw.randint(1, 2), moe_intermediate_size=draw.choice([8, 40]),
        routed_scaling_factor=draw.choice([1.0, 2.5]), norm_topk_prob=draw.random() < 0.7, **own,
    )  # fmt: skip
    del config["num_experts"]
    first = draw.randint(0, config["num_hidden_layers"])
    return {**config, "n_routed_experts": groups * size, "first_k_dense_replace": first}


def _glm4_moe(draw: random.Random) -> dict[str, Any]:
    config = _grouped(
        draw, head_dim=draw.choice([8, 16]), attention_bias=draw.random() < 0.5, use_qk_norm=draw.random() < 0.5
    )
    share = draw.choice([{}, {"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 1.0}])
    return {**config, "rope_parameters": {**config["rope_parameters"], **share}}


def _latent(draw: random.Random) -> dict[str, Any]:
    sizes = {
        "q_lora_rank": draw.choice([None, 12, 33]), "kv_lora_rank": draw.choice([8, 21, 32]),
        "qk_nope_head_dim": draw.choice([4, 9, 16]), "qk_rope_head_dim": draw.choice([4, 6, 10]),
        "v_head_dim": draw.choice([3, 8, 16]), "attention_bias": draw.random() < 0.4,
    }  # fmt: skip
    config = _grouped(draw, **sizes)
    config["num_key_value_heads"] = config["num_attention_heads"]
    sharper = draw.choice([{"mscale": 1.0, "mscale_all_dim": 1.0}, {"mscale": 0.7, "mscale_all_dim": 1.0}, {}])
    return config | ({"rope_parameters": {**YARN, **sharper}} if draw.random() < 0.5 else {})


def _deepseek_v2(draw: random.Random) -> dict[str, Any]:
    config, method = _latent(draw), draw.choice(["greedy", "group_limited_greedy"])
    del config["norm_topk_prob"]
    even = {name: config[name] // 2 * 2 for name in ("kv_lora_rank", "qk_nope_head_dim")}  # else the reference cannot run
    return {**config, **even, "topk_method": method}


def _deepseek_v3(draw: random.Random) -> dict[str, Any]:
    return {**_latent(draw), "rope_interleave": draw.random() < 0.7}


def _glm4_moe_lite(draw: random.Random) -> dict[str, Any]:
    config = _latent(draw)
    layers = config["num_hidden_layers"]
    kinds = [draw.choice(["dense", "sparse"]) for _ in range(layers)]
    del config["first_k_dense_replace"]
    return {**config, "rope_interleave": draw.random() < 0.7, "mlp_layer_types": draw.choice([kinds, None])}


def _llama4_text(draw: random.Random) -> dict[str, Any]:
    config = _experts(draw, head_dim=draw.choice([4, 8, 16]), attention_bias=draw.random() < 0.4)
    layers, plain = range(config["num_hidden_layers"]), {"rope_type": "default", "rope_theta": 500.0}
    stretched = config["rope_parameters"]["rope_type"] in ("yarn", "longrope", "dynamic")
    routed = draw.choice([{}, {"interleave_moe_layer_step": 2}, {"moe_layers": [n for n in layers if draw.random() < 0.5]}])
    kinds = [draw.choice(["chunked_attention", "full_attention"]) for _ in layers]
    rotated = draw.choice([{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": [draw.randint(0, 1) for _ in layers]}])
    return {
        **config, "num_local_experts": config.pop("num_experts"), "intermediate_size_mlp": draw.choice([24, 56]),
        "moe_layers": None, "no_rope_layers": None, **routed, **rotated,
        "attention_chunk_size": draw.choice([3, 7, 8]), "use_qk_norm": draw.random() < 0.7,
        "attn_temperature_tuning": draw.random() < 0.5, **draw.choice([{}, {"layer_types": kinds}]),
        "rope_parameters": plain if stretched else config["rope_parameters"],
    }  # fmt: skip


def _minimax_m2(draw: random.Random) -> dict[str, Any]:
    config = _experts(draw, head_dim=draw.choice([8, 16]))
    share = {"partial_rotary_factor": draw.choice([0.5, 0.25, 1.0])}
    return {
        **config, "num_local_experts": config.pop("num_experts"), "rope_parameters": {**config["rope_parameters"], **share}
    }  # fmt: skip


def _ernie4_5_moe(draw: random.Random) -> dict[str, Any]:
    config = _experts(
        draw, head_dim=draw.choice([4, 8, 16]), moe_intermediate_size=draw.choice([8, 40]),
        moe_num_shared_experts=draw.randint(0, 2), moe_layer_start_index=draw.randint(0, 2),
        moe_layer_end_index=draw.choice([-1, 1, 2]), moe_layer_interval=draw.choice([1, 1, 2]),
    )  # fmt: skip
    return {**config, "moe_num_experts": config.pop("num_experts"), "moe_k": config.pop("num_experts_per_tok")}


def _granitemoe(draw: random.Random) -> dict[str, Any]:
    config = _experts(
        draw, attention_bias=draw.random() < 0.4, embedding_multiplier=draw.choice([1.0, 8.0]),
        attention_multiplier=draw.choice([0.1, 0.5]), residual_multiplier=draw.choice([0.3, 1.0]),
        logits_scaling=draw.choice([1.0, 5.0]),
    )  # fmt: skip
    return {**config, "num_local_experts": config.pop("num_experts")}


RANDOM: dict[str, Callable[[random.Random], dict[str, Any]]] = {
    "mixtral": _mixtral, "qwen3_moe": _qwen3_moe, "qwen2_moe": _qwen2_moe, "olmoe": _olmoe, "gpt_oss": _gpt_oss,
    "glm4_moe_lite": _glm4_moe_lite, "llama4_text": _llama4_text, "minimax_m2": _minimax_m2, "ernie4_5_moe": _ernie4_5_moe,
    "glm4_moe": _glm4_moe, "deepseek_v2": _deepseek_v2, "deepseek_v3": _deepseek_v3,
    "granitemoe": _granitemoe,
}  # fmt: skip
