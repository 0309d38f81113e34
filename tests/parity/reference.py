"""The reference implementation, asked for tiny models: it writes them to disk, and ours reads them."""

from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

logging.getLogger("transformers").setLevel(logging.ERROR)
transformers.utils.logging.disable_progress_bar()

DECODERS = ("llama", "mistral", "qwen2", "qwen3", "gpt2", "gemma3_text")
ENCODERS = ("bert", "distilbert", "roberta")
PAIRS = ("t5", "bart")  # encoder-decoders
FAMILIES = (*DECODERS, *ENCODERS, *PAIRS)

AUTO = {  # our word for a head: how its Auto class ends, with the reference and with us
    "base": "", "causal": "CausalLM", "seq2seq": "Seq2SeqLM", "masked": "MaskedLM", "sequence": "SequenceClassification",
    "token": "TokenClassification", "question": "QuestionAnswering",
}  # fmt: skip
HEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(DECODERS, ("base", "causal", "sequence")),
    **dict.fromkeys(ENCODERS, ("base", "masked", "sequence", "token", "question")),
    "gpt2": ("base", "causal", "sequence", "token", "question"),
    "t5": ("base", "seq2seq"),
    "bart": ("base", "seq2seq", "sequence", "question"),
}

SMALL: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
BERT: dict[str, Any] = {
    "vocab_size": 150, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-6,
}  # fmt: skip
TINY: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), SMALL),
    "gemma3_text": {
        **SMALL, "hidden_size": 64, "head_dim": 12, "query_pre_attn_scalar": 20, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt2": {
        "vocab_size": 160, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80, "n_positions": 256, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0,
    },
    "bert": {**BERT, "pad_token_id": 0},
    "roberta": {**BERT, "pad_token_id": 1, "max_position_embeddings": 66},
    "distilbert": {
        "vocab_size": 150, "dim": 48, "hidden_dim": 80, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 64,
    },
    "t5": {
        "vocab_size": 140, "d_model": 48, "d_kv": 10, "d_ff": 80, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 14, "decoder_start_token_id": 0,
    },
    "bart": {
        "vocab_size": 140, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 6,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 80, "max_position_embeddings": 64,
        "scale_embedding": True,
    },
}  # fmt: skip

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


def config(model_type: str, **changes: Any) -> Any:
    return transformers.AutoConfig.for_model(model_type, **{**TINY[model_type], **changes})


def auto(head: str) -> Any:
    """The reference's Auto class for a head: by our word for it, or by its own."""
    ending = AUTO.get(head, head)
    return getattr(transformers, f"AutoModelFor{ending}" if ending else "AutoModel")


def build(model_type: str, head: str = "CausalLM", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A reference model with random weights that are lively enough for differences to show.

    No bias is zero and no norm's weight is one, so that nothing can be swapped or forgotten unseen.
    """
    model = auto(head).from_config(config(model_type, **changes), dtype=dtype, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    norms = {module for module in model.modules() if "Norm" in type(module).__name__}
    centred = {module for module in norms if type(module).__name__ == "Gemma3RMSNorm"}  # their weights are added to one
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            holder, _, own = name.rpartition(".")
            module = model.get_submodule(holder)
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if module in norms:
                parameter.copy_(0.1 * noise + (own == "weight" and module not in centred))
            elif "relative_attention_bias" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(noise * (0.3 if parameter.ndim == 1 else 0.15))
        for name, buffer in model.named_buffers():
            if name.endswith("final_logits_bias"):
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
    return model


def write(folder: Path, model_type: str, head: str = "CausalLM", **changes: Any) -> Any:
    model = build(model_type, head, **changes)
    model.save_pretrained(folder)
    return model


def random_changes(model_type: str, seed: int) -> dict[str, Any]:
    """A configuration that no other test has."""
    draw = random.Random(seed)
    if model_type in RANDOM:
        return RANDOM[model_type](draw)
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
        **({"attention_bias": draw.random() < 0.4} if model_type in ("llama", "qwen3") else {}),
        **({"sliding_window": draw.choice([None, 7])} if model_type == "mistral" else {}),
    }


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


def _gpt2(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 3])
    return {
        "vocab_size": draw.randint(60, 300), "n_embd": heads * draw.choice([6, 16]), "n_head": heads,
        "n_layer": draw.randint(2, 4), "n_inner": draw.choice([None, 56]), "tie_word_embeddings": draw.random() < 0.5,
        "activation_function": draw.choice(["gelu_new", "relu", "gelu"]), "layer_norm_epsilon": draw.choice([1e-5, 1e-3]),
        "scale_attn_by_inverse_layer_idx": draw.random() < 0.5, "scale_attn_weights": draw.random() < 0.7,
    }  # fmt: skip


def _bert(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": draw.randint(60, 200), "hidden_size": heads * draw.choice([6, 16]), "num_attention_heads": heads,
        "num_hidden_layers": draw.randint(1, 4), "intermediate_size": draw.choice([24, 72]),
        "hidden_act": draw.choice(["gelu", "relu", "gelu_new"]), "type_vocab_size": draw.choice([1, 2, 3]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]), "tie_word_embeddings": draw.random() < 0.7,
    }  # fmt: skip


def _distilbert(draw: random.Random) -> dict[str, Any]:
    heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": draw.randint(60, 200), "dim": heads * draw.choice([6, 16]), "n_heads": heads,
        "n_layers": draw.randint(1, 4), "hidden_dim": draw.choice([24, 72]), "activation": draw.choice(["gelu", "relu"]),
        "sinusoidal_pos_embds": draw.random() < 0.5, "tie_word_embeddings": draw.random() < 0.7,
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


def _bart(draw: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": draw.randint(60, 200), "d_model": draw.choice([24, 48]), "encoder_layers": draw.randint(1, 3),
        "decoder_layers": draw.randint(1, 4), "encoder_attention_heads": draw.choice([1, 2, 3]),
        "decoder_attention_heads": draw.choice([1, 4, 6]), "encoder_ffn_dim": draw.choice([24, 72]),
        "decoder_ffn_dim": draw.choice([32, 56]), "scale_embedding": draw.random() < 0.5,
        "activation_function": draw.choice(["gelu", "relu"]),
    }  # fmt: skip


RANDOM = {
    "gemma3_text": _gemma3_text, "gpt2": _gpt2, "bert": _bert, "roberta": _bert, "distilbert": _distilbert, "t5": _t5,
    "bart": _bart,
}  # fmt: skip
