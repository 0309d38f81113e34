"""Decoders."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), SMALL),
    "gemma3_text": {
        **SMALL, "hidden_size": 64, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "phi3": {**SMALL, "sliding_window": 9},
    "modernbert-decoder": {
        "vocab_size": 160, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
        "max_position_embeddings": 256, "local_attention": 10, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2,
    },
    "olmo2": SMALL,
    "olmo3": {**SMALL, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "granite": {
        **SMALL, "embedding_multiplier": 6.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4, "logits_scaling": 3.0,
    },
    "smollm3": {**SMALL, "no_rope_layer_interval": 2},
    **dict.fromkeys(("seed_oss", "ernie4_5", "hunyuan_v1_dense", "arcee", "helium", "glm4"), SMALL),
    "exaone4": {**SMALL, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "cohere": {**{name: value for name, value in SMALL.items() if name != "head_dim"}, "logit_scale": 0.3},
    **dict.fromkeys(("nemotron", "apertus"), SMALL),
    "olmo": {**{name: value for name, value in SMALL.items() if name != "head_dim"}, "clip_qkv": 0.2},
    "stablelm": {
        **{name: value for name, value in SMALL.items() if name != "head_dim"}, "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
    },
    "phi": {**{name: value for name, value in SMALL.items() if name != "head_dim"}, "qk_layernorm": True},
    "ministral3": {
        **SMALL, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 8, "mscale": 1.0,
            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3,
        },
    },
    "gemma4_text": {
        **SMALL, "num_hidden_layers": 5, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 160, "sliding_window": 5,
        "use_double_wide_mlp": True, "final_logit_softcapping": 2.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "gemma3n_text": {
        **SMALL, "num_hidden_layers": 5, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 160, "sliding_window": 5, "altup_num_inputs": 3, "laurel_rank": 6,
        "activation_sparsity_pattern": [0.6, 0.9, 0.0, 0.0, 0.0], "final_logit_softcapping": 2.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "gemma": SMALL,
    "gemma2": {
        **SMALL, "hidden_size": 64, "query_pre_attn_scalar": 20, "sliding_window": 5, "attn_logit_softcapping": 1.5,
        "final_logit_softcapping": 2.0,
    },
    "gpt_neox": {
        **{name: value for name, value in SMALL.items() if name not in ("num_key_value_heads", "head_dim")},
        "rotary_pct": 0.5,
    },
    "starcoder2": {**{name: value for name, value in SMALL.items() if name != "head_dim"}, "sliding_window": 9},
    "cohere2": {
        **{name: value for name, value in SMALL.items() if name != "head_dim"}, "sliding_window": 5, "logit_scale": 0.3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gptj": {
        "vocab_size": 160, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80, "n_positions": 256, "rotary_dim": 6,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    },
    "gpt_neo": {
        "vocab_size": 160, "hidden_size": 48, "num_layers": 3, "num_heads": 4, "intermediate_size": 80,
        "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "window_size": 5,
        "attention_types": [[["global", "local"], 1], [["local"], 1]],
    },
    "gpt_bigcode": {
        "vocab_size": 160, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80, "n_positions": 256, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    },
    "openai-gpt": {
        "vocab_size": 160, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 256, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    },
    "opt": {**PLAIN, "ffn_dim": 80, "do_layer_norm_before": True},
    "bloom": {
        "vocab_size": 160, "hidden_size": 48, "n_layer": 3, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    },
    "mpt": {
        "vocab_size": 160, "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 256, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "use_cache": True, "attn_config": {"clip_qkv": 0.2},
    },
    "falcon": {**PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 80},
    "biogpt": {**PLAIN, "intermediate_size": 80},
    "gpt2": {
        "vocab_size": 160, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80, "n_positions": 256, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    },
}  # fmt: skip
NOT_ON_GPU = {  # what the GPU engine says of a family that it cannot run
    "gemma2": "caps its scores softly",
    **dict.fromkeys(("bloom", "mpt"), "takes distances off its scores"),
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "has blocks that share keys or read tokens themselves"),
    "ministral3": "scales its scores by position", "apertus": "has an activation with learned numbers",
}  # fmt: skip
NOT_SPLIT = {  # among ranks, and why not
    **dict.fromkeys(("gemma3n_text", "gemma4_text"), "every block reads vectors of tokens beside the stream"),
    "stablelm": "each head has a norm of its own",
    "olmo2": "q_norm needs all of what would be divided", "olmo3": "q_norm needs all of what would be divided",
    **dict.fromkeys(("bloom", "mpt"), "each of its heads has a slope of its own"),
    **dict.fromkeys(("phi3", "falcon", "gpt_bigcode"), "there are fewer key heads than ranks"),  # where there are
}  # fmt: skip
SEVERAL_STREAMS = ("gemma3n_text",)  # which each block mixes, so that no view takes one for the sum of all that was added
DECODER_HEADS = ("base", "causal", "sequence")
HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TINY, DECODER_HEADS),
    **dict.fromkeys(
        (
            "phi3",
            "smollm3",
            "gemma",
            "gemma2",
            "starcoder2",
            "seed_oss",
            "exaone4",
            "arcee",
            "helium",
            "glm4",
            "stablelm",
            "phi",
            "nemotron",
            "ministral3",
        ),
        (*DECODER_HEADS, "token"),
    ),
    "gpt_neox": (*DECODER_HEADS, "token", "question"),
    **dict.fromkeys(("granite", "cohere", "cohere2", "ernie4_5", "gemma3n_text", "gemma4_text"), ("base", "causal")),
    "apertus": ("base", "causal", "token"),
    **dict.fromkeys(("bloom", "mpt", "falcon"), (*DECODER_HEADS, "token", "question")),
    "gpt_bigcode": (*DECODER_HEADS, "token"),
    "biogpt": (*DECODER_HEADS, "token"),
    "opt": (*DECODER_HEADS, "question"),
    "gptj": (*DECODER_HEADS, "question"),
    "gpt_neo": (*DECODER_HEADS, "token", "question"),
    "gpt2": (*DECODER_HEADS, "token", "question"),
}

LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 5000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


ROPES: list[dict[str, Any]] = [
    LLAMA3_ROPE,
    {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0},
    {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
     "beta_slow": 2.0, "attention_factor": 0.8, "truncate": False},
]  # fmt: skip


def _llama(draw: random.Random, **own: Any) -> dict[str, Any]:
    groups = draw.choice([1, 2, 3])
    heads = groups * draw.choice([1, 2, 3])
    rope = draw.choice([{"rope_type": "default", "rope_theta": draw.choice([500.0, 10000.0, 1e6])}, *ROPES])
    return {
        "vocab_size": draw.randint(60, 300),
        "hidden_size": heads * draw.choice([6, 10, 16]),
        "intermediate_size": draw.choice([24, 56, 128]),
        "num_hidden_layers": draw.randint(1, 4),
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "head_dim": draw.choice([4, 8, 16]),
        "tie_word_embeddings": draw.random() < 0.5,
        "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "rope_parameters": rope,
        **own,
    }


def _with_biases(draw: random.Random) -> dict[str, Any]:
    return _llama(draw, attention_bias=draw.random() < 0.4)


def _mistral(draw: random.Random) -> dict[str, Any]:
    return _llama(draw, sliding_window=draw.choice([None, 7]))


def _gemma3_text(draw: random.Random) -> dict[str, Any]:
    near = {"rope_type": "default", "rope_theta": draw.choice([100.0, 10000.0])}
    # the last one is left out: where each kind of layer has a rope, the reference does not see its "truncate"
    far = draw.choice([{"rope_type": "default", "rope_theta": 1e6}, *ROPES[:-1]])
    layers = draw.randint(2, 4)
    mixed = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    kinds = {"layer_types": mixed} if draw.random() < 0.5 else {"layer_types": None, "sliding_window_pattern": 2}
    groups = draw.choice([1, 2])
    heads = groups * draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([8, 14]), "intermediate_size": 56,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups,
        "head_dim": draw.choice([4, 10, 16]), "tie_word_embeddings": draw.random() < 0.5, "sliding_window": 5,
        "query_pre_attn_scalar": draw.choice([4, 24, 100]), "attention_bias": draw.random() < 0.4,
        "hidden_activation": draw.choice(["gelu_pytorch_tanh", "gelu"]), "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "rope_parameters": {"sliding_attention": near, "full_attention": far}, **kinds,
    }  # fmt: skip


def _without_head_size(draw: random.Random, **own: Any) -> dict[str, Any]:
    """Of a family whose heads are as large as the hidden size makes them."""
    heads, groups = draw.choice([(2, 1), (4, 2), (3, 3), (6, 2)])
    changes = {"num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": None}
    return _llama(draw, hidden_size=heads * draw.choice([4, 10, 16]), **changes, **own)


def _phi3(draw: random.Random) -> dict[str, Any]:
    heads, size, share = draw.choice([1, 2, 4]), draw.choice([8, 16]), draw.choice([1.0, 0.5, 0.75])
    pairs = int(size * share) // 2
    trained = draw.choice([64, 100])  # the reference's generate reads a text anew when it goes beyond
    longrope = {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": trained,
        "short_factor": [1 + 0.1 * pair for pair in range(pairs)], "long_factor": [1.5 + pair for pair in range(pairs)],
    }  # fmt: skip
    rope = draw.choice([{"rope_type": "default", "rope_theta": 500.0}, longrope])
    return _llama(
        draw, hidden_size=heads * size, num_attention_heads=heads, num_key_value_heads=draw.choice([1, heads]),
        head_dim=size, sliding_window=draw.choice([None, 7]), rope_parameters={**rope, "partial_rotary_factor": share},
        original_max_position_embeddings=trained,
    )  # fmt: skip


def _olmo3(draw: random.Random) -> dict[str, Any]:
    near, far = {"rope_type": "default", "rope_theta": 500.0}, draw.choice([{"rope_type": "default"}, *ROPES[:-1]])
    ropes = {"sliding_attention": near, "full_attention": {"rope_theta": 500.0, **far}}
    layers = draw.randint(2, 5)
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    return _with_biases(draw) | {
        "num_hidden_layers": layers, "sliding_window": 5, "layer_types": draw.choice([None, kinds]),
        "rope_parameters": ropes,
    }  # fmt: skip


def _granite(draw: random.Random) -> dict[str, Any]:
    return _llama(
        draw, attention_bias=draw.random() < 0.4, mlp_bias=draw.random() < 0.4, embedding_multiplier=draw.choice([1.0, 8.0]),
        attention_multiplier=draw.choice([0.1, 0.5]), residual_multiplier=draw.choice([0.3, 1.0]),
        logits_scaling=draw.choice([1.0, 5.0]),
    )  # fmt: skip


def _smollm3(draw: random.Random) -> dict[str, Any]:
    layers = draw.randint(2, 5)
    kinds = {"no_rope_layers": [draw.choice([0, 1]) for _ in range(layers)]}
    windows = {"use_sliding_window": draw.random() < 0.5, "sliding_window": 6}
    changes = _llama(draw, num_hidden_layers=layers, **windows, **draw.choice([kinds, {"no_rope_layer_interval": 2}]))
    return changes | {"attention_bias": draw.random() < 0.4, "mlp_bias": draw.random() < 0.4}


def _gemma3n_text(draw: random.Random) -> dict[str, Any]:
    near, far = ({"rope_type": "default", "rope_theta": draw.choice([100.0, 10000.0, 1e6])} for _ in range(2))
    groups = draw.choice([1, 2])
    heads, own = groups * draw.choice([1, 2, 3]), draw.randint(2, 4)
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(own)]
    kinds += [draw.choice(kinds) for _ in range(draw.choice([0, 1, 3]))]
    streams, vocabulary = draw.choice([2, 3, 4]), draw.randint(60, 300)
    without = draw.choice([0, 20])  # ids that have no vectors of their own beside the stream, but the first row's
    return {
        "vocab_size": vocabulary, "hidden_size": heads * draw.choice([8, 14]), "num_hidden_layers": len(kinds),
        "intermediate_size": draw.choice([56, [draw.choice([24, 56]) for _ in kinds]]), "layer_types": kinds,
        "num_kv_shared_layers": len(kinds) - own, "num_attention_heads": heads, "num_key_value_heads": groups,
        "head_dim": draw.choice([4, 10]), "hidden_size_per_layer_input": draw.choice([4, 12]),
        "vocab_size_per_layer_input": vocabulary - without, "tie_word_embeddings": draw.random() < 0.5,
        "sliding_window": 5, "attention_bias": draw.random() < 0.4, "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "hidden_activation": draw.choice(["gelu_pytorch_tanh", "gelu"]), "altup_num_inputs": streams,
        "altup_active_idx": draw.randrange(streams), "laurel_rank": draw.choice([3, 8]),
        "activation_sparsity_pattern": [draw.choice([0.0, 0.5, 0.8, 0.95]) for _ in kinds],
        "rope_parameters": {"sliding_attention": near, "full_attention": far},
        "final_logit_softcapping": draw.choice([1.5, 30.0]),
        **({"pad_token_id": None} if without else {}),  # which the reference would keep from learning
    }  # fmt: skip


def _gemma4_text(draw: random.Random) -> dict[str, Any]:
    near = {"rope_type": "default", "rope_theta": draw.choice([100.0, 10000.0])}
    far = draw.choice([
        {"rope_type": "proportional", "partial_rotary_factor": draw.choice([0.25, 0.5, 1.0]), "rope_theta": 1e4},
        {"rope_type": "default", "rope_theta": 500.0},
    ])  # fmt: skip
    groups = draw.choice([1, 2])
    heads, own = groups * draw.choice([1, 2, 3]), draw.randint(2, 4)
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(own)]
    kinds[draw.randrange(own)] = "full_attention"
    shared = [draw.choice(kinds) for _ in range(draw.choice([0, 1, 3]))]
    shared[-1:] = ["full_attention"] * bool(shared)
    if not shared:
        kinds[-1] = "full_attention"
    vocabulary, routed = draw.randint(60, 300), draw.random() < 0.6
    sizes = [8, 12] if routed else [8, 14]  # the reference's experts have rows of a multiple of 16 bytes
    return {
        "vocab_size": vocabulary, "hidden_size": heads * draw.choice(sizes), "intermediate_size": 56,
        "num_hidden_layers": own + len(shared), "num_kv_shared_layers": len(shared), "layer_types": kinds + shared,
        "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": draw.choice([4, 10]),
        "global_head_dim": draw.choice([8, 16]), "attention_k_eq_v": draw.random() < 0.5,
        "num_global_key_value_heads": draw.choice([None, 1]), "use_double_wide_mlp": draw.random() < 0.5,
        "hidden_size_per_layer_input": draw.choice([0, 4, 12]), "vocab_size_per_layer_input": vocabulary,
        "tie_word_embeddings": draw.random() < 0.5, "sliding_window": 5, "attention_bias": draw.random() < 0.4,
        "hidden_activation": draw.choice(["gelu_pytorch_tanh", "gelu"]), "rms_norm_eps": draw.choice([1e-5, 1e-6]),
        "rope_parameters": {"sliding_attention": near, "full_attention": far},
        "final_logit_softcapping": draw.choice([None, 1.5, 30.0]), "enable_moe_block": routed,
        "num_experts": 5, "top_k_experts": draw.choice([1, 2, 3]), "moe_intermediate_size": draw.choice([12, 20]),
    }  # fmt: skip


def _gemma2(draw: random.Random) -> dict[str, Any]:
    changes = _with_biases(draw)
    heads, layers = changes["num_attention_heads"], changes["num_hidden_layers"]
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    return changes | {
        "hidden_size": heads * draw.choice([8, 14]), "query_pre_attn_scalar": draw.choice([4, 24, 100]), "sliding_window": 5,
        "layer_types": draw.choice([None, kinds]), "attn_logit_softcapping": draw.choice([None, 0.7, 20.0]),
        "final_logit_softcapping": draw.choice([None, 1.5, 30.0]),
    }  # fmt: skip


def _gpt_neox(draw: random.Random) -> dict[str, Any]:
    heads, size = draw.choice([1, 2, 4]), draw.choice([8, 16])
    rope = draw.choice([{"rope_type": "default", "rope_theta": draw.choice([500.0, 10000.0])}, ROPES[1]])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * size, "num_attention_heads": heads,
        "intermediate_size": draw.choice([24, 56]), "num_hidden_layers": draw.randint(1, 4),
        "tie_word_embeddings": draw.random() < 0.5, "layer_norm_eps": draw.choice([1e-5, 1e-3]),
        "hidden_act": draw.choice(["gelu", "relu", "gelu_new"]), "use_parallel_residual": draw.random() < 0.6,
        "attention_bias": draw.random() < 0.7,
        "rope_parameters": {**rope, "partial_rotary_factor": draw.choice([0.25, 0.5, 1.0])},
    }  # fmt: skip


def _starcoder2(draw: random.Random) -> dict[str, Any]:
    changes = _without_head_size(draw, sliding_window=draw.choice([None, 7]), use_bias=draw.random() < 0.7)
    del changes["head_dim"], changes["rms_norm_eps"]
    return changes | {"norm_epsilon": draw.choice([1e-5, 1e-3]), "hidden_act": draw.choice(["gelu_pytorch_tanh", "relu"])}


def _seed_oss(draw: random.Random) -> dict[str, Any]:
    return _llama(
        draw, attention_bias=draw.random() < 0.6, attention_out_bias=draw.random() < 0.4, mlp_bias=draw.random() < 0.4,
    )  # fmt: skip


def _ernie4_5(draw: random.Random) -> dict[str, Any]:
    return _llama(draw, use_bias=draw.random() < 0.5)


def _arcee(draw: random.Random) -> dict[str, Any]:
    own = {"mlp_bias": draw.random() < 0.4, "hidden_act": draw.choice(["relu2", "silu"])}
    return _llama(draw, attention_bias=draw.random() < 0.4, **own)


def _helium(draw: random.Random) -> dict[str, Any]:
    config = _with_biases(draw)
    return config | {"hidden_size": config["num_attention_heads"] * config["head_dim"], "mlp_bias": draw.random() < 0.4}


def _hunyuan_v1_dense(draw: random.Random) -> dict[str, Any]:
    config = _with_biases(draw)
    alpha = {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": draw.choice([3.0, 1000.0]), "factor": 1.0}
    return config | draw.choice([{}, {"rope_parameters": alpha}])


def _exaone4(draw: random.Random) -> dict[str, Any]:
    config = _llama(draw, num_hidden_layers=draw.randint(2, 5))
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(config["num_hidden_layers"])]
    everything = {"sliding_window": None, "layer_types": ["full_attention"] * len(kinds)}
    own: list[dict[str, Any]] = [
        {"layer_types": kinds}, {"layer_types": None, "sliding_window_pattern": 3}, everything,
    ]  # fmt: skip
    return config | {"sliding_window": 5, **draw.choice(own)}


def _glm4(draw: random.Random) -> dict[str, Any]:
    config = _with_biases(draw)
    size = draw.choice([8, 16])
    share = draw.choice([{}, {"partial_rotary_factor": draw.choice([0.25, 1.0])}])
    rope = {"rope_type": "default", "rope_theta": 500.0}
    return config | {"head_dim": size, "rope_parameters": {**draw.choice([rope, ROPES[1]]), **share}}


def _stablelm(draw: random.Random) -> dict[str, Any]:
    return _partly_rotated(
        draw, use_qkv_bias=draw.random() < 0.5, use_parallel_residual=draw.random() < 0.5, qk_layernorm=draw.random() < 0.5
    )


def _partly_rotated(draw: random.Random, size: int = 8, **own: Any) -> dict[str, Any]:
    """Of a family with layer norms that rotates a part of each head."""
    heads, groups = draw.choice([(2, 1), (4, 2), (3, 3), (6, 2)])
    share = draw.choice([{}, {"partial_rotary_factor": draw.choice([0.25, 0.75, 1.0])}])
    rope = draw.choice([{"rope_type": "default", "rope_theta": 500.0}, ROPES[1]])
    config = _llama(draw, hidden_size=heads * size, num_attention_heads=heads, num_key_value_heads=groups, **own)
    del config["head_dim"], config["rms_norm_eps"]
    return config | {"layer_norm_eps": draw.choice([1e-5, 1e-3]), "rope_parameters": {**rope, **share}}


def _phi(draw: random.Random) -> dict[str, Any]:
    return _partly_rotated(draw, qk_layernorm=draw.random() < 0.5, hidden_act=draw.choice(["gelu_new", "relu"]))


def _nemotron(draw: random.Random) -> dict[str, Any]:
    own = {"norm_eps": draw.choice([1e-5, 1e-3]), "head_dim": draw.choice([8, 16]), "hidden_size": 36}
    config = _partly_rotated(draw, attention_bias=draw.random() < 0.4, mlp_bias=draw.random() < 0.4)
    del config["layer_norm_eps"]
    return config | own | {"hidden_act": draw.choice(["relu2", "silu"])}


def _olmo(draw: random.Random) -> dict[str, Any]:
    config = _without_head_size(draw, attention_bias=draw.random() < 0.4)
    del config["head_dim"], config["rms_norm_eps"]
    return config | {"clip_qkv": draw.choice([None, 0.05, 0.3])}


def _ministral3(draw: random.Random) -> dict[str, Any]:
    trained = draw.choice([4, 16])
    scaled = {"llama_4_scaling_beta": draw.choice([0.1, 0.7]), "original_max_position_embeddings": trained}
    yarn = {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": draw.choice([0.5, 1.0])}
    rope = draw.choice([{"rope_type": "default"}, yarn])
    return _mistral(draw) | {"rope_parameters": {"rope_theta": 5000.0, **rope, **scaled}}


def _cohere(draw: random.Random) -> dict[str, Any]:
    changes = _without_head_size(draw, logit_scale=draw.choice([0.1, 2.0]), attention_bias=draw.random() < 0.4)
    del changes["head_dim"], changes["rms_norm_eps"]
    return changes | {"layer_norm_eps": draw.choice([1e-5, 1e-3])}


def _cohere2(draw: random.Random) -> dict[str, Any]:
    changes = _without_head_size(draw, sliding_window=5, logit_scale=draw.choice([0.1, 2.0]))
    layers = changes["num_hidden_layers"]
    kinds = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    del changes["head_dim"], changes["rms_norm_eps"]
    return changes | {
        "layer_types": draw.choice([None, kinds]), "layer_norm_eps": draw.choice([1e-5, 1e-3]),
        "attention_bias": draw.random() < 0.4,
    }  # fmt: skip


def _gptj(draw: random.Random) -> dict[str, Any]:
    heads, size = draw.choice([1, 2, 3]), draw.choice([8, 16])
    return {
        "vocab_size": draw.randint(60, 300), "n_embd": heads * size, "n_head": heads, "n_layer": draw.randint(1, 4),
        "n_inner": draw.choice([None, 56]), "rotary_dim": draw.choice([2, 4, 8]),
        "activation_function": draw.choice(["gelu_new", "relu"]), "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
    }  # fmt: skip


def _gpt_neo(draw: random.Random) -> dict[str, Any]:
    heads, repeats = draw.choice([1, 2, 3]), draw.choice([1, 2])
    kinds = [draw.choice(["global", "local"]) for _ in range(draw.choice([1, 2]))]
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([6, 16]), "num_heads": heads,
        "num_layers": len(kinds) * repeats + 1, "attention_types": [[kinds, repeats], [["local"], 1]], "window_size": 4,
        "intermediate_size": draw.choice([None, 56]), "tie_word_embeddings": draw.random() < 0.5,
        "activation_function": draw.choice(["gelu_new", "relu"]), "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
    }  # fmt: skip


def _gpt_bigcode(draw: random.Random) -> dict[str, Any]:
    config = _gpt2(draw)
    del config["scale_attn_by_inverse_layer_idx"]
    return config | {"multi_query": draw.random() < 0.6}


def _openai_gpt(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randint(60, 300), "n_embd": heads * draw.choice([6, 16]), "n_head": heads,
        "n_layer": draw.randint(2, 4), "tie_word_embeddings": draw.random() < 0.5, "afn": draw.choice(["gelu", "relu"]),
        "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
    }  # fmt: skip


def _plain(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([6, 16]), "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 4), "tie_word_embeddings": draw.random() < 0.5,
    }  # fmt: skip


def _opt(draw: random.Random) -> dict[str, Any]:
    config = _plain(draw)
    table = {} if draw.random() < 0.7 else {"word_embed_proj_dim": 10}
    return config | table | {
        "ffn_dim": draw.choice([24, 56]), "activation_function": draw.choice(["relu", "gelu"]),
        "do_layer_norm_before": draw.random() < 0.6, "enable_bias": draw.random() < 0.7,
        "layer_norm_elementwise_affine": draw.random() < 0.7, "_remove_final_layer_norm": draw.random() < 0.3,
    }  # fmt: skip


def _biogpt(draw: random.Random) -> dict[str, Any]:
    return _plain(draw) | {
        "intermediate_size": draw.choice([24, 56]), "hidden_act": draw.choice(["gelu", "relu"]),
        "scale_embedding": draw.random() < 0.7,
    }  # fmt: skip


def _bloom(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3, 4, 5])
    return {
        "vocab_size": draw.randint(60, 300), "hidden_size": heads * draw.choice([6, 16]), "n_head": heads,
        "n_layer": draw.randint(1, 4), "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
        "apply_residual_connection_post_layernorm": draw.random() < 0.4, "tie_word_embeddings": draw.random() < 0.5,
    }  # fmt: skip


def _mpt(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3, 4, 6])
    attention = {"softmax_scale": draw.choice([None, 0.3]), "clip_qkv": draw.choice([None, 0.05, 0.3])}
    return {
        "vocab_size": draw.randint(60, 300), "d_model": heads * draw.choice([6, 16]), "n_heads": heads,
        "n_layers": draw.randint(1, 4), "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
        "attn_config": draw.choice([None, attention]), "tie_word_embeddings": draw.random() < 0.5,
    }  # fmt: skip


def _falcon(draw: random.Random, alibi: bool = False) -> dict[str, Any]:
    heads = draw.choice([2, 3, 4, 6]) if not alibi else draw.choice([2, 4, 8])  # whose slopes the reference does not round
    new = draw.random() < 0.5
    own: dict[str, Any] = {"multi_query": draw.random() < 0.5, "parallel_attn": draw.random() < 0.6, "num_kv_heads": None}
    if new:
        own = {
            "num_kv_heads": draw.choice([1, heads // 2 if heads % 2 == 0 else heads, heads]),
            "num_ln_in_parallel_attn": draw.choice([None, 1, 2]),
        }
    rope = draw.choice([{"rope_type": "default", "rope_theta": 500.0}, ROPES[1]])
    return {
        **_plain(draw), **own, "num_attention_heads": heads, "hidden_size": heads * draw.choice([6, 16]),
        "new_decoder_architecture": new, "alibi": alibi, "bias": draw.random() < 0.5,
        "ffn_hidden_size": draw.choice([None, 56]), "activation": draw.choice(["gelu", "relu"]), "rope_parameters": rope,
        "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
    }  # fmt: skip


falcon_with_alibi = partial(_falcon, alibi=True)


def _gpt2(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randint(60, 300), "n_embd": heads * draw.choice([6, 16]), "n_head": heads,
        "n_layer": draw.randint(2, 4), "n_inner": draw.choice([None, 56]), "tie_word_embeddings": draw.random() < 0.5,
        "activation_function": draw.choice(["gelu_new", "relu", "gelu"]), "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.5, "scale_attn_weights": draw.random() < 0.7,
    }  # fmt: skip


def modernbert(draw: random.Random) -> dict[str, Any]:
    """What the encoder and the decoder have in common."""
    heads, layers = draw.choice([1, 2, 4]), draw.randint(1, 5)
    near, far = ({"rope_type": "default", "rope_theta": draw.choice([100.0, 10000.0, 160000.0])} for _ in range(2))
    mixed = [draw.choice(["sliding_attention", "full_attention"]) for _ in range(layers)]
    return {
        "vocab_size": draw.randint(60, 200), "hidden_size": heads * draw.choice([6, 16]), "num_attention_heads": heads,
        "num_hidden_layers": layers, "intermediate_size": draw.choice([24, 35]), "local_attention": draw.choice([16, 19]),
        "hidden_activation": draw.choice(["gelu", "silu"]), "norm_eps": draw.choice([1e-5, 1e-3]),
        "rope_parameters": {"sliding_attention": near, "full_attention": far},
        "layer_types": draw.choice([None, mixed]),
        "classifier_activation": draw.choice(["gelu", "tanh"]), "tie_word_embeddings": draw.random() < 0.7,
        **{name: draw.random() < 0.5
           for name in ("norm_bias", "attention_bias", "mlp_bias", "decoder_bias", "classifier_bias")},
    }  # fmt: skip


RANDOM = {
    "modernbert-decoder": modernbert,
    "llama": _with_biases, "mistral": _mistral, "qwen2": _llama, "qwen3": _with_biases, "gemma3_text": _gemma3_text,
    "phi3": _phi3, "olmo2": _with_biases, "olmo3": _olmo3, "granite": _granite, "smollm3": _smollm3, "gpt2": _gpt2,
    "gemma": _with_biases, "gemma2": _gemma2, "gpt_neox": _gpt_neox, "starcoder2": _starcoder2,
    "cohere2": _cohere2, "cohere": _cohere, "seed_oss": _seed_oss, "ernie4_5": _ernie4_5, "arcee": _arcee,
    "helium": _helium, "hunyuan_v1_dense": _hunyuan_v1_dense, "exaone4": _exaone4, "glm4": _glm4,
    "gptj": _gptj, "gpt_neo": _gpt_neo, "stablelm": _stablelm, "phi": _phi, "nemotron": _nemotron, "olmo": _olmo,
    "ministral3": _ministral3, "apertus": _with_biases, "gpt_bigcode": _gpt_bigcode, "openai-gpt": _openai_gpt, "opt": _opt,
    "gemma3n_text": _gemma3n_text, "gemma4_text": _gemma4_text,
    "bloom": _bloom, "mpt": _mpt, "falcon": _falcon,
    "biogpt": _biogpt,
}  # fmt: skip
