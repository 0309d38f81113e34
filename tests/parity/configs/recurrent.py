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
NOT_ON_GPU = dict.fromkeys(EXPERTS, "has experts")
NOT_SPLIT = {**dict.fromkeys(TINY, "its state is not divided"), "qwen3_next": "needs all of what would be divided"}
HEADS: dict[str, tuple[str, ...]] = {
    "qwen3_5_text": ("base", "causal", "sequence"),
    "qwen3_5_moe_text": ("base", "causal"),
    "qwen3_next": ("base", "causal", "sequence", "token"),
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


RANDOM = {"qwen3_5_text": _qwen3_5_text, "qwen3_5_moe_text": _qwen3_5_moe_text, "qwen3_next": _qwen3_next}
