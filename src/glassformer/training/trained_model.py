"""A trained model as files that every part of the package opens: a folder, and the course's `model.ckpt` for its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.compat.auto import AutoModelForCausalLM
from glassformer.ground.files import atomic_file
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


def write_half(folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
    """The model in half of the space: in float16, but for what is too large for it."""
    tensors = model.state_dict() if weights is None else weights
    model.save_pretrained(folder, state_dict={name: _half(value) for name, value in tensors.items()})
    tokenizer.save_pretrained(folder)


def lora_writer(lora: LoraSettings, base: str, merge: bool) -> ModelWriter:
    """Writes the updates beside a base, in peft's format; with `merge` also what they make of it, as a model of its own."""

    def write(folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
        target = folder / ADAPTER if merge else folder
        write_lora(target, model, lora, base, weights)
        tokenizer.save_pretrained(target)
        if merge:
            write_model(folder, AutoModelForCausalLM.from_pretrained(base, adapter=target), tokenizer)

    return write


def lora_snapshot_writer(lora: LoraSettings, base: str) -> ModelWriter:
    """Writes the updates alone, in half of the space; the tokenizer is the base's."""

    def write(folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
        write_lora(folder, model, lora, base, weights, half=True)

    return write


@dataclass(frozen=True)
class ModelWriters:
    """How a training's model is written: when it is trained, and on the way."""

    result: ModelWriter = write_model
    snapshot: ModelWriter = write_half


WHOLE_MODEL = ModelWriters()


def writers_of(lora: LoraSettings | None, base: str | None, merge: bool) -> ModelWriters:
    """Of a model that is trained itself, or of updates beside a base."""
    if lora is None or base is None:
        return WHOLE_MODEL
    return ModelWriters(lora_writer(lora, base, merge), lora_snapshot_writer(lora, base))


def h_params(config: Any) -> dict[str, Any]:
    """The hyperparameters in the chapter's words."""
    return {
        "d_model": config.hidden_size, "num_heads": config.num_attention_heads, "num_blocks": config.num_hidden_layers,
        "context_length": config.max_position_embeddings, "vocab_size": config.vocab_size, "dropout": config.dropout,
        "device": "cpu",
    }  # fmt: skip


def _half(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    half = value.detach().to("cpu", torch.float16)
    return half if bool(half.isfinite().all()) else value.detach().cpu()


def _on_cpu(tensors: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}
