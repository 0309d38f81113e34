"""A trained model as files that every part of the package opens: a folder, and the course's `model.ckpt` for its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.atomic_files import atomic_file
from glassformer.compat.auto import AutoModelForCausalLM
from glassformer.text import Tokenizer
from glassformer.training.lora import LoraSettings, write_lora

CHECKPOINT = "model.ckpt"
ADAPTER = "adapter"  # the folder of the updates beside a merged model
Weights = Mapping[str, Tensor]  # by name, where the model itself has only a part of them
ModelWriter = Callable[[Path, Any, Tokenizer, Weights | None], None]


def write_model(folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
    """The model, its tokenizer, and the checkpoint as the course's chapters read it."""
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    if model.config.model_type == "scratch":
        tensors = {**model.state_dict(), **(weights or {})}
        with atomic_file(folder / CHECKPOINT) as path:
            torch.save({"h_params": h_params(model.config), "model_state_dict": _on_cpu(tensors)}, path)


def lora_writer(lora: LoraSettings, base: str, merge: bool) -> ModelWriter:
    """Writes the updates beside a base, in peft's format; with `merge` also what they make of it, as a model of its own."""

    def write(folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
        target = folder / ADAPTER if merge else folder
        write_lora(target, model, lora, base, weights)
        tokenizer.save_pretrained(target)
        if merge:
            write_model(folder, AutoModelForCausalLM.from_pretrained(base, adapter=target), tokenizer)

    return write


def h_params(config: Any) -> dict[str, Any]:
    """The hyperparameters in the chapter's words."""
    return {
        "d_model": config.hidden_size, "num_heads": config.num_attention_heads, "num_blocks": config.num_hidden_layers,
        "context_length": config.max_position_embeddings, "vocab_size": config.vocab_size, "dropout": config.dropout,
        "device": "cpu",
    }  # fmt: skip


def _on_cpu(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
