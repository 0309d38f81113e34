"""A trained model as files that every part of the package opens: a folder, and the course's `model.ckpt` for its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from glassformer.atomic_files import atomic_file
from glassformer.text import Tokenizer

CHECKPOINT = "model.ckpt"


def write_model(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    """The model, its tokenizer, and the checkpoint as the course's chapters read it."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if model.config.model_type == "scratch":
        with atomic_file(folder / CHECKPOINT) as path:
            torch.save({"h_params": h_params(model.config), "model_state_dict": _on_cpu(model.state_dict())}, path)


def h_params(config: Any) -> dict[str, Any]:
    """The hyperparameters in the chapter's words."""
    return {
        "d_model": config.hidden_size, "num_heads": config.num_attention_heads, "num_blocks": config.num_hidden_layers,
        "context_length": config.max_position_embeddings, "vocab_size": config.vocab_size, "dropout": config.dropout,
        "device": "cpu",
    }  # fmt: skip


def _on_cpu(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
