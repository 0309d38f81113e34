"""Decoders with layers that keep a state."""

from __future__ import annotations

import random
from typing import Any

from tests.parity.configs.decoders import ROPES, SMALL

TINY: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        **SMALL, "head_dim": 16, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 6,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "layer_types": None, "full_attention_interval": 2,
    },
}  # fmt: skip
ROUTED = {
    "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
}  # fmt: skip
TINY["qwen3_5_moe_text"] = {
    name: value for name, value in TINY["qwen3_5_text"].items() if name != "intermediate_size"
} | ROUTED
TINY["qwen3_next"] = {**TINY["qwen3_5_text"], **ROUTED, "mlp_only_layers": [1]}
EXPERTS = ("qwen3_5_moe_text", "qwen3_next")
TINY["olmo_hybrid"] = {
    **{name: value for name, value in TINY["qwen3_5_text"].items() if name not in ("head_dim", "full_attention_interval")},
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": None},
}  # fmt: skip
TINY["lfm2"] = {
    **{name: value for name, value in SMALL.items() if name != "head_dim"}, "block_multiple_of": 12,
    "layer_types": ["conv", "full_attention", "conv"],
}  # fmt: skip
TINY["lfm2_moe"] = {
    **{name: value for name, value in TINY["lfm2"].items() if name != "block_multiple_of"}, "num_experts": 5,
    "num_experts_per_tok": 2, "moe_intermediate_size": 20, "num_dense_layers": 1,
}  # fmt: skip
TINY["mamba2"] = {
    "vocab_size": 160, "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 4, "head_dim": 16, "state_size": 10,
    "expand": 2, "n_groups": 2, "conv_kernel": 4, "chunk_size": 16,
}  # fmt: skip
TINY["nemotron_h"] = {
    "vocab_size": 160, "hidden_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
    "max_position_embeddings": 64, "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
    "intermediate_size": 56, "ssm_state_size": 10, "mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2,
    "chunk_size": 16, "n_routed_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 24, "routed_scaling_factor": 1.5,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 10, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_chunk_size": 16,
}  # fmt: skip
HYBRID = {name: value for name, value in SMALL.items() if name != "head_dim"}
TINY["granitemoehybrid"] = {
    **HYBRID, **MAMBA, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_local_experts": 5,
    "num_experts_per_tok": 2, "intermediate_size": 20, "shared_intermediate_size": 24, "attention_multiplier": 0.3,
    "embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0,
}  # fmt: skip
TINY["bamba"] = {**HYBRID, **MAMBA, "attn_layer_indices": [1]}
MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 5.5, "lm_head_multiplier": 0.4, "key_multiplier": 0.6, "attention_in_multiplier": 0.8,
    "attention_out_multiplier": 0.7, "ssm_in_multiplier": 1.3, "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.7, 0.5, 0.35, 1.2, 0.8], "mlp_multipliers": [0.88, 0.5],
}  # fmt: skip
TINY["falcon_h1"] = {**HYBRID, **MAMBA, **MULTIPLIERS, "mamba_d_ssm": 48}
TINY["kimi_linear"] = {
    **{name: value for name, value in SMALL.items() if name != "head_dim"}, "num_key_value_heads": 4,
    "kv_lora_rank": 24, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 14, "linear_head_dim": 8,
    "linear_num_heads": 5, "linear_conv_kernel_dim": 4, "num_local_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 36, "n_shared_experts": 2, "n_group": 3, "topk_group": 2,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["dense", "sparse", "sparse"], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
EXPERTS += ("lfm2_moe", "nemotron_h", "granitemoehybrid", "kimi_linear")
NOT_ON_GPU = dict.fromkeys(EXPERTS, "has experts")
NOT_SPLIT = {
    **dict.fromkeys(TINY, "needs all of what would be divided"),
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid"), "its state is not divided"),
    "kimi_linear": "all heads read one latent",
}
HEADS: dict[str, tuple[str, ...]] = {
    "qwen3_5_text": ("base", "causal", "sequence"),
    "qwen3_5_moe_text": ("base", "causal"),
    "qwen3_next": ("base", "causal", "sequence", "token"),
    **dict.fromkeys(("lfm2", "lfm2_moe", "olmo_hybrid", "kimi_linear"), ("base", "causal")),
    "mamba2": ("base", "causal"),
    **dict.fromkeys(("nemotron_h", "granitemoehybrid", "bamba", "falcon_h1"), ("base", "causal")),
}


def _qwen3_5_text(draw: random.Random) -> dict[str, Any]:
    layers, groups = draw.randint(3, 5), draw.choice([1, 2, 3])
    heads, keys = groups * draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    kinds = [draw.choice(["linear_attention", "full_attention"]) for _ in range(layers - 2)]
    some = ["linear_attention", *kinds, "full_attention"]
    draw.shuffle(some)
    pattern = draw.choice([{"layer_types": some}, {"full_attention_interval": draw.choice([2, 3])}])
    rope = draw.choice([{"rope_type": "default", "rope_theta": draw.choice([500.0, 1e6])}, *ROPES])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([8, 14]), "intermediate_size": 56,
        "num_hidden_layers": layers, "num_attention_heads": heads, "layer_types": None, "num_key_value_heads": groups,
        "head_dim": draw.choice([8, 16]), "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-5, 1e-6]), "attention_bias": draw.random() < 0.3,
        "linear_conv_kernel_dim": draw.choice([2, 3, 4]), "linear_key_head_dim": draw.choice([4, 7, 16]),
        "linear_value_head_dim": draw.choice([5, 8, 16]), "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * draw.choice([1, 2, 3]),
        "rope_parameters": {**rope, "partial_rotary_factor": draw.choice([0.25, 0.5, 1.0])}, **pattern,
    }  # fmt: skip


def _experts(draw: random.Random) -> dict[str, Any]:
    experts = draw.randint(3, 7)
    return {
        "num_experts": experts, "num_experts_per_tok": draw.randint(1, 3), "moe_intermediate_size": draw.choice([12, 24]),
        "shared_expert_intermediate_size": draw.choice([12, 28]),
    }  # fmt: skip


def _qwen3_5_moe_text(draw: random.Random) -> dict[str, Any]:
    return {**_qwen3_5_text(draw), **_experts(draw), "hidden_size": draw.choice([16, 28, 40])}


def _qwen3_next(draw: random.Random) -> dict[str, Any]:
    drawn = {**_qwen3_5_text(draw), **_experts(draw), "hidden_size": draw.choice([16, 28, 40])}
    dense = draw.choice([{}, {"mlp_only_layers": [0]}, {"decoder_sparse_step": 2}])
    return {**drawn, "norm_topk_prob": draw.random() < 0.7, **dense}


def _olmo_hybrid(draw: random.Random) -> dict[str, Any]:
    config = _qwen3_5_text(draw)
    rope = {name: value for name, value in config["rope_parameters"].items() if name != "partial_rotary_factor"}
    own = ("head_dim", "rope_parameters", "full_attention_interval")
    if config["layer_types"] is None:
        config["layer_types"] = ["full_attention", *["linear_attention"] * (config["num_hidden_layers"] - 1)]
    return {
        **{name: value for name, value in config.items() if name not in own},
        "rope_parameters": draw.choice([rope, {"rope_type": "default", "rope_theta": None}]),
        "linear_allow_neg_eigval": draw.random() < 0.6, "linear_value_head_dim": draw.choice([None, 5, 8]),
    }  # fmt: skip


def _lfm2(draw: random.Random) -> dict[str, Any]:
    layers, groups = draw.randint(3, 5), draw.choice([1, 2, 3])
    heads = groups * draw.choice([1, 2, 3])
    some = ["conv", *(draw.choice(["conv", "full_attention"]) for _ in range(layers - 2)), "full_attention"]
    draw.shuffle(some)
    attending = [layer for layer, kind in enumerate(some) if kind == "full_attention"]
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([8, 14]), "num_attention_heads": heads,
        "intermediate_size": draw.choice([24, 56]), "num_hidden_layers": layers, "num_key_value_heads": groups,
        "norm_eps": draw.choice([1e-5, 1e-6]), "conv_L_cache": draw.choice([1, 2, 3, 4]),
        "tie_word_embeddings": draw.random() < 0.5, "conv_bias": draw.random() < 0.5,
        **draw.choice([{"layer_types": some}, {"layer_types": None, "full_attn_idxs": attending}]),
        "rope_parameters": draw.choice([{"rope_type": "default", "rope_theta": draw.choice([500.0, 1e6])}, *ROPES]),
    }  # fmt: skip


def _lfm2_dense(draw: random.Random) -> dict[str, Any]:
    adjusted = {"block_multiple_of": draw.choice([4, 10]), "block_ffn_dim_multiplier": draw.choice([1.0, 1.3])}
    neurons = draw.choice([{"block_auto_adjust_ff_dim": False}, adjusted])
    return {**_lfm2(draw), **neurons}


def _lfm2_moe(draw: random.Random) -> dict[str, Any]:
    config = _lfm2(draw)
    config["layer_types"] = config.get("layer_types") or [
        "full_attention" if layer in config["full_attn_idxs"] else "conv" for layer in range(config["num_hidden_layers"])
    ]
    return {
        **{name: value for name, value in config.items() if name != "full_attn_idxs"},
        "hidden_size": 8 * config["num_attention_heads"],
        **{name: value for name, value in _experts(draw).items() if "shared" not in name},
        "num_dense_layers": draw.randint(0, 2), "use_expert_bias": draw.random() < 0.7,
        "norm_topk_prob": draw.random() < 0.7, "routed_scaling_factor": draw.choice([1.0, 1.7]),
    }  # fmt: skip


RANDOM: dict[str, Any] = {"lfm2": _lfm2_dense, "lfm2_moe": _lfm2_moe, "olmo_hybrid": _olmo_hybrid}
RANDOM |= {"qwen3_5_text": _qwen3_5_text, "qwen3_5_moe_text": _qwen3_5_moe_text, "qwen3_next": _qwen3_next}


def _mamba2(draw: random.Random) -> dict[str, Any]:
    groups, size = draw.choice([1, 2, 3]), draw.choice([5, 8, 14])
    heads, expand = groups * 2 * draw.choice([1, 2]), draw.choice([1, 2])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * size // expand, "num_hidden_layers": draw.randint(1, 4),
        "num_heads": heads, "head_dim": size, "state_size": draw.choice([4, 7, 16]), "expand": expand, "n_groups": groups,
        "conv_kernel": draw.choice([2, 3, 4]), "use_bias": draw.random() < 0.4, "use_conv_bias": draw.random() < 0.6,
        "hidden_act": draw.choice(["silu", "gelu"]), "layer_norm_epsilon": draw.choice([1e-5, 1e-6]),
        "tie_word_embeddings": draw.random() < 0.5, "chunk_size": draw.choice([4, 16]),
    }  # fmt: skip


def _nemotron_h(draw: random.Random) -> dict[str, Any]:
    kinds = ["linear_attention", "full_attention"]  # without attention the reference cannot count tokens
    kinds += draw.choices(["linear_attention", "full_attention", "moe", "mlp"], k=draw.randint(1, 3))
    draw.shuffle(kinds)
    keys, groups, states = draw.choice([1, 2, 3]), draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    experts = groups * draw.randint(2, 3)
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": draw.choice([16, 28, 40]), "layers_block_type": kinds,
        "num_attention_heads": keys * draw.choice([1, 2]), "num_key_value_heads": keys, "head_dim": draw.choice([8, 13]),
        "intermediate_size": draw.choice([40, 56]), "mlp_bias": draw.random() < 0.3,
        "mlp_hidden_act": draw.choice(["relu2", "silu"]), "max_position_embeddings": 64,
        "ssm_state_size": draw.choice([4, 7, 16]), "mamba_num_heads": states * draw.choice([1, 2]),
        "mamba_head_dim": draw.choice([5, 8, 16]), "n_groups": states, "conv_kernel": draw.choice([2, 3, 4]),
        "use_bias": draw.random() < 0.4, "use_conv_bias": draw.random() < 0.6, "chunk_size": draw.choice([4, 16]),
        "n_routed_experts": experts, "num_experts_per_tok": draw.randint(1, 2), "n_group": groups,
        "topk_group": draw.randint(1, groups), "norm_topk_prob": draw.random() < 0.7,
        "moe_intermediate_size": draw.choice([12, 24]), "moe_shared_expert_intermediate_size": draw.choice([12, 28]),
        "moe_latent_size": draw.choice([None, None, 20]), "routed_scaling_factor": draw.choice([1.0, 2.5]),
    }  # fmt: skip


def _hybrid(draw: random.Random) -> dict[str, Any]:
    keys, groups = draw.choice([1, 2, 3]), draw.choice([1, 2, 3])
    heads, expand, states = keys * draw.choice([1, 2]), draw.choice([1, 2]), groups * draw.choice([1, 2])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * states * draw.choice([8, 12]), "intermediate_size": 56,
        "num_hidden_layers": draw.randint(2, 4), "num_attention_heads": heads, "num_key_value_heads": keys,
        "rms_norm_eps": draw.choice([1e-5, 1e-6]), "attention_bias": draw.random() < 0.3, "max_position_embeddings": 64,
        "tie_word_embeddings": draw.random() < 0.5, "mamba_n_heads": states, "mamba_n_groups": groups,
        "mamba_d_state": draw.choice([4, 7, 16]), "mamba_d_conv": draw.choice([2, 3, 4]), "mamba_expand": expand,
        "mamba_conv_bias": draw.random() < 0.6, "mamba_proj_bias": draw.random() < 0.4,
        "mamba_chunk_size": draw.choice([4, 16]),
    }  # fmt: skip


def _granitemoehybrid(draw: random.Random) -> dict[str, Any]:
    drawn = _hybrid(draw)
    kinds = ["full_attention", *draw.choices(["linear_attention", "full_attention"], k=drawn["num_hidden_layers"] - 1)]
    draw.shuffle(kinds)
    experts = draw.choice([0, 3, 5])
    return {
        **drawn, "layer_types": kinds, "num_local_experts": experts, "num_experts_per_tok": min(experts, draw.randint(1, 3)),
        "intermediate_size": draw.choice([12, 24]), "shared_intermediate_size": draw.choice([16, 28]),
        "position_embedding_type": draw.choice([None, "rope"]), "attention_multiplier": draw.choice([0.2, 0.5]),
        "embedding_multiplier": draw.choice([1.0, 4.0]), "residual_multiplier": draw.choice([1.0, 0.4]),
        "logits_scaling": draw.choice([1.0, 3.0]),
    }  # fmt: skip


def _bamba(draw: random.Random) -> dict[str, Any]:
    drawn = _hybrid(draw)
    layers = range(drawn["num_hidden_layers"])
    attending = sorted(draw.sample(layers, draw.randint(1, len(layers))))
    theta = draw.choice([1e4, 5e5])
    return {
        **drawn, "attn_layer_indices": attending, "mlp_bias": draw.random() < 0.3,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }  # fmt: skip


def _falcon_h1(draw: random.Random) -> dict[str, Any]:
    drawn = _hybrid(draw)
    whole = {**MULTIPLIERS, "ssm_multipliers": [draw.choice([0.5, 1.4]) for _ in range(5)]}
    some = {name: value for name, value in whole.items() if draw.random() < 0.7}
    rope = draw.choice([{"rope_type": "default", "rope_theta": draw.choice([500.0, 1e11])}, *ROPES])
    return {
        **drawn, **some, "mamba_d_ssm": draw.choice([None, drawn["mamba_n_heads"] * draw.choice([5, 8])]),
        "mamba_rms_norm": draw.random() < 0.6, "mamba_norm_before_gate": draw.random() < 0.5, "rope_parameters": rope,
        "projectors_bias": draw.random() < 0.4, "mlp_bias": draw.random() < 0.3, **draw.choice([{}, {"head_dim": 8}]),
    }  # fmt: skip


def _kimi_linear(draw: random.Random) -> dict[str, Any]:
    layers, heads = draw.randint(2, 5), draw.choice([1, 2, 3, 4])
    kinds = ["full_attention", "linear_attention"]  # without attention the reference cannot count tokens
    kinds += [draw.choice(kinds) for _ in range(layers - 2)]
    draw.shuffle(kinds)
    groups, size = draw.choice([(1, 5), (2, 3), (4, 2)])
    kept = draw.randint(1, groups)
    attending = [layer + 1 for layer, kind in enumerate(kinds) if kind == "full_attention"]
    sizes = {
        "head_dim": draw.choice([4, 7, 16]), "num_heads": draw.choice([1, 2, 3]),
        "short_conv_kernel_size": draw.choice([2, 3, 4]),
    }  # fmt: skip
    published = {
        **sizes, "full_attn_layers": attending, "kda_layers": [n for n in range(1, layers + 1) if n not in attending],
    }  # fmt: skip
    flat = {
        "layer_types": kinds, "linear_head_dim": sizes["head_dim"], "linear_num_heads": sizes["num_heads"],
        "linear_conv_kernel_dim": sizes["short_conv_kernel_size"],
    }  # fmt: skip
    listed = {"mlp_layer_types": [draw.choice(["dense", "sparse"]) for _ in range(layers)]}
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": draw.choice([16, 28, 40]), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads, "intermediate_size": draw.choice([24, 56]),
        "rms_norm_eps": draw.choice([1e-5, 1e-6]), "attention_bias": draw.random() < 0.4,
        "q_lora_rank": draw.choice([None, 12, 33]), "kv_lora_rank": draw.choice([8, 21, 32]),
        "qk_nope_head_dim": draw.choice([4, 9, 16]), "qk_rope_head_dim": draw.choice([4, 6, 10]),
        "v_head_dim": draw.choice([3, 8, 16]), "num_local_experts": groups * size, "n_group": groups, "topk_group": kept,
        "num_experts_per_tok": draw.randint(1, kept * size), "moe_intermediate_size": draw.choice([8, 40]),
        "n_shared_experts": draw.randint(1, 2), "norm_topk_prob": draw.random() < 0.7,
        "routed_scaling_factor": draw.choice([1.0, 2.5]), "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        **draw.choice([flat, {"layer_types": None, "linear_attn_config": published}]),
        **draw.choice([listed, {"mlp_layer_types": None, "first_k_dense_replace": draw.randint(0, layers)}]),
    }  # fmt: skip


RANDOM |= {
    "kimi_linear": _kimi_linear,
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granitemoehybrid, "bamba": _bamba,
    "qwen3_5_text": _qwen3_5_text, "qwen3_5_moe_text": _qwen3_5_moe_text, "qwen3_next": _qwen3_next, "mamba2": _mamba2,
    "nemotron_h": _nemotron_h,
}  # fmt: skip
