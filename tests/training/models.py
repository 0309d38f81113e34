"""Tiny models and data to train them on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from glassformer.blueprints import read_config
from glassformer.compat.auto import model_class_for_head
from glassformer.training.objectives.language_model import LanguageModel
from glassformer.training.settings import TrainingSettings

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 32, "tie_word_embeddings": True,
}  # fmt: skip
SETTINGS = TrainingSettings(steps=6, batch_size=6, learning_rate=3e-3, warmup_steps=2, evaluate_every=3, save_every=2)


def tiny_model(model_type: str = "llama", head: Any = "causal", **changes: Any) -> Any:
    """Always the same random weights."""
    torch.manual_seed(3)
    return model_class_for_head(model_type, head)(read_config({"model_type": model_type, **SIZES, **changes}))


def token_ids(count: int = 700) -> np.ndarray[Any, Any]:
    """Ids in which each is often followed by the next: something to learn."""
    draw = np.random.default_rng(5)
    return ((np.arange(count) + (draw.random(count) < 0.2) * draw.integers(0, 9, count)) % 40).astype(np.uint16)


def language_model(length: int = 12, held_out: int = 100) -> LanguageModel:
    ids = token_ids()
    return LanguageModel(ids[:-held_out], length, ids[-held_out:], np.arange(SIZES["vocab_size"]) % 7 + 1, "test")
