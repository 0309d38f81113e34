"""Encoders."""

from __future__ import annotations

import random
from typing import Any

from tests.parity.configs import decoders, encoder_decoders

BERT: dict[str, Any] = {
    "vocab_size": 150, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-6,
}  # fmt: skip
UNTYPED = {name: value for name, value in BERT.items() if name != "type_vocab_size"}
TINY: dict[str, dict[str, Any]] = {
    "bert": {**BERT, "pad_token_id": 0},
    "distilbert": {
        "vocab_size": 150, "dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64,
    },
    "roberta": {**BERT, "pad_token_id": 1, "max_position_embeddings": 66},
    "xlm-roberta": {**BERT, "pad_token_id": 1, "max_position_embeddings": 66},
    "xlm-roberta-xl": {**BERT, "pad_token_id": 1, "max_position_embeddings": 66},
    "camembert": {**BERT, "pad_token_id": 1, "max_position_embeddings": 66},
    "mpnet": {**UNTYPED, "pad_token_id": 1, "max_position_embeddings": 66},
    "megatron-bert": {**BERT, "pad_token_id": 0},
    "roformer": {**BERT, "pad_token_id": 0, "embedding_size": 20},
    "nomic_bert": {**BERT, "pad_token_id": 0},
    "gte": {**BERT, "pad_token_id": 1},
    "electra": {**BERT, "pad_token_id": 0, "embedding_size": 20},
    "albert": {
        **BERT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "embedding_size": 20, "num_hidden_groups": 2,
    },
    "eurobert": {
        "vocab_size": 150, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "mask_token_id": 3, "classifier_pooling": "bos",
    },
    "embedding_gemma": {**decoders.TINY["gemma3_text"], "sliding_window": 8},
    "t5gemma_encoder": {**encoder_decoders.TINY["t5gemma"], "is_encoder_decoder": False},
    "modernbert": {
        "vocab_size": 150, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
        "max_position_embeddings": 64, "local_attention": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2,
    },
    "deberta": {
        **BERT, "pad_token_id": 0, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False,
        "max_relative_positions": -1, "pos_att_type": "c2p|p2c",
    },
    "deberta-v2": {
        **BERT, "pad_token_id": 0, "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False,
        "position_buckets": 8, "max_relative_positions": -1, "pos_att_type": "p2c|c2p", "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
}  # fmt: skip
ENCODER_HEADS = ("base", "masked", "sequence", "token", "question")
HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TINY, ENCODER_HEADS), "electra": (*ENCODER_HEADS, "discriminator"),
    **dict.fromkeys(("nomic_bert", "gte", "eurobert"), ENCODER_HEADS[:-1]), "embedding_gemma": ENCODER_HEADS[:-2],
    "t5gemma_encoder": ("base", "sequence", "token"),
}  # fmt: skip


def _bert(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": draw.randint(60, 200), "hidden_size": heads * draw.choice([6, 16]), "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 4), "intermediate_size": draw.choice([24, 72]),
        "hidden_act": draw.choice(["gelu", "relu", "gelu_new"]), "type_vocab_size": draw.choice([1, 2, 3]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]), "tie_word_embeddings": draw.random() < 0.7,
    }  # fmt: skip


def _mpnet(draw: random.Random) -> dict[str, Any]:
    return {name: value for name, value in _bert(draw).items() if name != "type_vocab_size"}


def _rotary_bert(draw: random.Random) -> dict[str, Any]:
    ropes = [None, {"rope_type": "default", "rope_theta": 300.0}, {"rope_type": "linear", "rope_theta": 5e4, "factor": 2.5}]
    return {
        **_bert(draw), "hidden_act": draw.choice(["silu", "gelu"]), "rope_parameters": draw.choice(ropes),
        "classifier_dropout": draw.choice([None, 0.2]),
    }  # fmt: skip


def _distilbert(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": draw.randint(60, 200), "dim": heads * draw.choice([6, 16]), "n_heads": heads,
        "n_layers": draw.randint(1, 4), "hidden_dim": draw.choice([24, 72]), "activation": draw.choice(["gelu", "relu"]),
        "sinusoidal_pos_embds": draw.random() < 0.5, "tie_word_embeddings": draw.random() < 0.7,
    }  # fmt: skip


def _factorized(draw: random.Random) -> dict[str, Any]:
    """Embeddings that are narrower or wider than the states, or as wide."""
    config = _bert(draw)
    return {**config, "embedding_size": draw.choice([8, 20, config["hidden_size"]])}


def _albert(draw: random.Random) -> dict[str, Any]:
    config = _factorized(draw)
    return {**config, "num_hidden_groups": draw.randint(1, config["num_hidden_layers"])}


def _deberta(draw: random.Random) -> dict[str, Any]:
    relative = draw.random() < 0.9
    positions, buckets = draw.choice([True, False]), draw.choice([-1, 4, 8, 20])
    return {
        **_bert(draw), "type_vocab_size": draw.choice([0, 2]) if positions else 0, "position_biased_input": positions,
        "relative_attention": relative, "position_buckets": buckets,
        "max_relative_positions": draw.choice([-1, 16, 13 if buckets == 20 else 6]),
        "pos_att_type": draw.choice([["p2c", "c2p"], ["c2p"], ["p2c"]]), "share_att_key": draw.random() < 0.5,
        "norm_rel_ebd": draw.choice(["none", "layer_norm"]) if relative else "none",
        "pooler_hidden_act": draw.choice(["gelu", "tanh"]),
    }  # fmt: skip


def _first_deberta(draw: random.Random) -> dict[str, Any]:
    own = ("position_buckets", "share_att_key", "norm_rel_ebd")
    return {name: value for name, value in _deberta(draw).items() if name not in own}


def _modernbert(draw: random.Random) -> dict[str, Any]:
    return {**decoders.modernbert(draw), "classifier_pooling": draw.choice(["cls", "mean"])}


def _eurobert(draw: random.Random) -> dict[str, Any]:
    groups = draw.choice([1, 2])
    heads = groups * draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randint(60, 200), "hidden_size": heads * draw.choice([6, 16]), "num_attention_heads": heads,
        "num_key_value_heads": groups, "num_hidden_layers": draw.randint(1, 4), "intermediate_size": draw.choice([24, 35]),
        "head_dim": draw.choice([None, 8, 14]), "hidden_act": draw.choice(["silu", "gelu"]),
        "rms_norm_eps": draw.choice([1e-5, 1e-3]), "attention_bias": draw.random() < 0.4, "mlp_bias": draw.random() < 0.4,
        "rope_parameters": draw.choice([None, {"rope_type": "default", "rope_theta": 300.0}, *decoders.ROPES]),
        "classifier_pooling": draw.choice(["late", "bos", "mean"]), "tie_word_embeddings": draw.random() < 0.4,
    }  # fmt: skip


def _embedding_gemma(draw: random.Random) -> dict[str, Any]:
    return {**decoders.RANDOM["gemma3_text"](draw), "sliding_window": draw.choice([4, 7, 10])}


def _t5gemma_encoder(draw: random.Random) -> dict[str, Any]:
    return {**encoder_decoders.RANDOM["t5gemma"](draw), "is_encoder_decoder": False}


RANDOM = {
    "t5gemma_encoder": _t5gemma_encoder,
    "deberta": _first_deberta, "eurobert": _eurobert, "embedding_gemma": _embedding_gemma,
    "bert": _bert, "distilbert": _distilbert, "roberta": _bert, "xlm-roberta": _bert, "electra": _factorized,
    "nomic_bert": _rotary_bert, "gte": _rotary_bert,
    "xlm-roberta-xl": _bert, "camembert": _bert, "mpnet": _mpnet, "megatron-bert": _bert, "roformer": _factorized,
    "albert": _albert, "modernbert": _modernbert, "deberta-v2": _deberta,
}  # fmt: skip
