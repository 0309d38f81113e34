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

SMALL: dict[str, Any] = {
    "vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
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
    return transformers.AutoConfig.for_model(model_type, **{**SMALL, **changes})


def build(model_type: str, head: str = "CausalLM", dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A reference model with random weights that are lively enough for differences to show."""
    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    model = auto.from_config(config(model_type, **changes), dtype=dtype, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else noise * (0.3 if parameter.ndim == 1 else 0.15))
    return model


def write(folder: Path, model_type: str, head: str = "CausalLM", **changes: Any) -> Any:
    model = build(model_type, head, **changes)
    model.save_pretrained(folder)
    return model


def random_changes(model_type: str, seed: int) -> dict[str, Any]:
    """A configuration that no other test has."""
    draw = random.Random(seed)
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
