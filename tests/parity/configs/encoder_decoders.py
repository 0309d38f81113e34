"""Encoder-decoders."""

from __future__ import annotations

import random
from typing import Any

T5: dict[str, Any] = {
    "vocab_size": 140, "d_model": 48, "d_kv": 10, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 14, "decoder_start_token_id": 0,
}  # fmt: skip
BART: dict[str, Any] = {
    "vocab_size": 140, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 6,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 80, "max_position_embeddings": 64,
    "scale_embedding": True,
}  # fmt: skip
SWITCH: dict[str, Any] = {
    **T5, "num_layers": 3, "num_decoder_layers": 4, "num_experts": 5, "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 2, "router_jitter_noise": 0.0,
}  # fmt: skip
GEMMA: dict[str, Any] = {  # a stack of T5Gemma's
    "vocab_size": 140, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 72,
    "max_position_embeddings": 64, "query_pre_attn_scalar": 24, "sliding_window": 6, "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 4.0,
}  # fmt: skip
LED: dict[str, Any] = {
    **{name: value for name, value in BART.items() if name not in ("max_position_embeddings", "scale_embedding")},
    "max_encoder_position_embeddings": 96, "max_decoder_position_embeddings": 64, "attention_window": [8, 4],
}  # fmt: skip
BARTS = ("bart", "marian", "pegasus", "mbart", "m2m_100", "blenderbot", "blenderbot-small")  # built of BART's parts
TINY: dict[str, dict[str, Any]] = {
    "t5": T5,
    "mt5": T5,
    "umt5": T5,
    "bart": BART,
    "marian": {
        **BART, "pad_token_id": 139, "decoder_start_token_id": 139, "eos_token_id": 0, "forced_eos_token_id": 0,
    },
    "pegasus": BART,
    "mbart": {**BART, "decoder_start_token_id": 7},
    "blenderbot": {**BART, "encoder_no_repeat_ngram_size": 0},
    "blenderbot-small": BART,
    "m2m_100": {**BART, "activation_function": "relu"},
    "switch_transformers": SWITCH,
    "led": LED,
    "t5gemma": {
        "vocab_size": 140, "decoder_start_token_id": 2,
        "encoder": {**GEMMA, "hidden_size": 32, "num_hidden_layers": 3, "sliding_window": 4},
        "decoder": {**GEMMA, "hidden_size": 48, "num_hidden_layers": 4, "head_dim": 14, "num_key_value_heads": 1},
    },
}  # fmt: skip
NOT_ON_GPU = {
    "blenderbot-small": "adds positions to a norm's result",
    "t5gemma": "caps its scores softly",
    "switch_transformers": "has experts",
    "led": "may have global tokens",
}
NOT_SPLIT = {"switch_transformers": "it has experts"}
SINUSOIDAL = ("marian", "pegasus", "m2m_100")  # whose positions follow from the config
HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TINY, ("base", "seq2seq")),
    **dict.fromkeys(("bart", "mbart"), ("base", "seq2seq", "sequence", "question")),
    "led": ("base", "seq2seq", "question"), "t5gemma": ("base", "seq2seq", "sequence", "token"),
}  # fmt: skip


def _t5(draw: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": draw.randint(60, 200), "d_model": draw.choice([20, 48]), "d_kv": draw.choice([4, 14]),
        "d_ff": draw.choice([24, 72]), "num_layers": draw.randint(1, 3), "num_decoder_layers": draw.choice([None, 1, 2, 4]),
        "num_heads": draw.choice([1, 3, 4]), "relative_attention_num_buckets": draw.choice([6, 12, 32]),
        "relative_attention_max_distance": draw.choice([17, 40, 128]), "tie_word_embeddings": draw.random() < 0.5,
        "feed_forward_proj": draw.choice(["relu", "gated-gelu", "gated-silu"]),
        "layer_norm_epsilon": draw.choice([1e-6, 1e-4]),
    }  # fmt: skip


def _switch(draw: random.Random) -> dict[str, Any]:
    config = {name: value for name, value in _t5(draw).items() if name not in ("feed_forward_proj", "tie_word_embeddings")}
    return {
        **config, "num_experts": draw.choice([2, 3, 7]), "num_sparse_encoder_layers": draw.randint(1, config["num_layers"]),
        "num_sparse_decoder_layers": draw.randint(1, config["num_decoder_layers"] or config["num_layers"]),
        "router_bias": draw.random() < 0.5, "dense_act_fn": draw.choice(["relu", "silu"]),
    }  # fmt: skip


def _bart(draw: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": draw.randint(60, 200), "d_model": draw.choice([24, 48]), "encoder_layers": draw.randint(1, 3),
        "decoder_layers": draw.randint(1, 4), "encoder_attention_heads": draw.choice([1, 2, 3]),
        "decoder_attention_heads": draw.choice([1, 4, 6]), "encoder_ffn_dim": draw.choice([24, 72]),
        "decoder_ffn_dim": draw.choice([32, 56]), "scale_embedding": draw.random() < 0.5,
        "activation_function": draw.choice(["gelu", "relu"]),
    }  # fmt: skip


def _marian(draw: random.Random) -> dict[str, Any]:
    config = _bart(draw)
    last = config["vocab_size"] - 1
    return {
        **config,
        "activation_function": draw.choice(["swish", "relu"]),
        "pad_token_id": last,
        "decoder_start_token_id": last,
    }


def _mbart(draw: random.Random) -> dict[str, Any]:
    return {**_bart(draw), "decoder_start_token_id": draw.randint(5, 50)}


def _m2m_100(draw: random.Random) -> dict[str, Any]:
    return {
        **_bart(draw), "d_model": draw.choice([12, 24, 48]), "activation_function": draw.choice(["swish", "relu"]),
    }  # fmt: skip


def _led(draw: random.Random) -> dict[str, Any]:
    config = {name: value for name, value in _bart(draw).items() if name != "scale_embedding"}
    layers = config["encoder_layers"]
    windows = draw.choice([4, 6, 10, [4] * layers, [draw.choice([4, 12]) for _ in range(layers)]])  # 2 is too few for theirs
    return {**config, "attention_window": windows}


def _t5gemma(draw: random.Random) -> dict[str, Any]:
    def stack() -> dict[str, Any]:
        groups, layers = draw.choice([1, 2, 3]), draw.randint(1, 4)
        heads = groups * draw.choice([1, 2])
        kinds = ["sliding_attention", "full_attention"]
        return {
            "vocab_size": vocabulary, "num_key_value_heads": groups, "num_attention_heads": heads,
            "hidden_size": heads * draw.choice([6, 10]), "head_dim": draw.choice([4, 10, 16]), "num_hidden_layers": layers,
            "intermediate_size": draw.choice([24, 56]), "query_pre_attn_scalar": draw.choice([4, 20]),
            "sliding_window": draw.choice([1, 3, 8]), "attention_bias": draw.random() < 0.3,
            "layer_types": draw.choice([None, [draw.choice(kinds) for _ in range(layers)]]),
            "attn_logit_softcapping": draw.choice([None, 2.0, 5.0]), "rms_norm_eps": draw.choice([1e-6, 1e-4]),
            "final_logit_softcapping": draw.choice([None, 3.0]), "max_position_embeddings": 64,
            "hidden_activation": draw.choice(["gelu_pytorch_tanh", "silu"]),
            "rope_parameters": draw.choice([
                {"rope_type": "default", "rope_theta": 500.0}, {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4},
            ]),
        }  # fmt: skip

    vocabulary = draw.randint(60, 200)
    return {
        "vocab_size": vocabulary, "encoder": stack(), "decoder": stack(), "tie_word_embeddings": draw.random() < 0.5,
        "decoder_start_token_id": 2,
    }  # fmt: skip


RANDOM = {
    "t5": _t5, "mt5": _t5, "umt5": _t5,
    "bart": _bart, "blenderbot": _bart, "blenderbot-small": _bart,
    "marian": _marian, "pegasus": _bart, "mbart": _mbart, "m2m_100": _m2m_100,
    "led": _led, "t5gemma": _t5gemma, "switch_transformers": _switch,
}  # fmt: skip
