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
TINY["lfm2"] = {
    **{name: value for name, value in SMALL.items() if name != "head_dim"}, "block_multiple_of": 12,
    "layer_types": ["conv", "full_attention", "conv"],
}  # fmt: skip
TINY["lfm2_moe"] = {
    **{name: value for name, value in TINY["lfm2"].items() if name != "block_multiple_of"}, "num_experts": 5,
    "num_experts_per_tok": 2, "moe_intermediate_size": 20, "num_dense_layers": 1,
}  # fmt: skip
EXPERTS += ("lfm2_moe",)
NOT_ON_GPU = dict.fromkeys(EXPERTS, "has experts")
NOT_SPLIT = {
    **dict.fromkeys(TINY, "its state is not divided"),
    **dict.fromkeys(("qwen3_next", "lfm2", "lfm2_moe"), "needs all of what would be divided"),
}
HEADS: dict[str, tuple[str, ...]] = {
    "qwen3_5_text": ("base", "causal", "sequence"),
    "qwen3_5_moe_text": ("base", "causal"),
    "qwen3_next": ("base", "causal", "sequence", "token"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), ("base", "causal")),
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
        "tie_word_embeddings": draw.random() < 0.5,
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


RANDOM: dict[str, Any] = {"lfm2": _lfm2_dense, "lfm2_moe": _lfm2_moe}
RANDOM |= {"qwen3_5_text": _qwen3_5_text, "qwen3_5_moe_text": _qwen3_5_moe_text, "qwen3_next": _qwen3_next}
