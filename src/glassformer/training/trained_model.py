"""The model of a training as files: one to go on from, and the trained one, which every part of the package opens.

A trained model is a folder; the course's has its `model.ckpt` too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.adapters import is_adapter
from glassformer.blueprints import Head
from glassformer.checkpoint.locate import locate
from glassformer.compat.auto import AutoModelForCausalLM, model_class_for_head
from glassformer.ground.errors import SettingError, spell
from glassformer.ground.files import atomic_file
from glassformer.model_files import open_model
from glassformer.text import Tokenizer
from glassformer.training.lora import LoraSettings, add_lora, write_lora
from glassformer.training.settings import TrainingSettings

note = logging.getLogger("glassformer").warning
CHECKPOINT = "model.ckpt"
ADAPTER = "adapter"  # the folder of the updates beside a merged model
Weights = Mapping[str, Tensor]  # by name, where the model itself has only a part of them


def load_start_model(name: str, lora: LoraSettings | None, settings: TrainingSettings, head: Head = "causal") -> Any:
    """A model by its name, ready to be trained.

    What is trained is float32. A frozen model is in the precision that it is computed in, which spares half of the memory
    with bfloat16.
    """
    if lora is not None and is_adapter(locate(name)):
        raise SettingError(
            f"{name}: is an adapter, and {spell('lora')} trains one beside a whole model. Give its base, or train it with "
            "--merge first."
        )
    opened = open_model(name)
    dtype = torch.bfloat16 if lora is not None and settings.precision == "bfloat16" else torch.float32
    if opened.packed:
        size = sum(tensor.elements for tensor in opened.tensors.values()) * dtype.itemsize / 1e6
        note(f"{name}: its {opened.kind} weights are expanded to be trained with: {size:,.0f} MB.")
    model = model_class_for_head(opened.config.model_type, head).from_pretrained(name, dtype=dtype)
    if lora is not None:
        torch.manual_seed(settings.seed)
        add_lora(model, lora)
    return model


@dataclass(frozen=True)
class ModelWriter:
    """Writes a training's model: all of it, or with `lora` the updates beside a base, in peft's format."""

    lora: LoraSettings | None = None
    base: str = ""
    merge: bool = False  # also what the updates make of the base, as a model that stands alone

    def write(self, folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
        """The model when it is trained."""
        if self.lora is None:
            write_model(folder, model, tokenizer, weights)
            return
        target = folder / ADAPTER if self.merge else folder
        write_lora(target, model, self.lora, self.base, weights)
        tokenizer.save_pretrained(target)
        if self.merge:
            write_model(folder, AutoModelForCausalLM.from_pretrained(self.base, adapter=target), tokenizer)

    def write_snapshot(self, folder: Path, model: Any, tokenizer: Tokenizer) -> None:
        """The model on the way, in half of the space: in float16, but for what is too large for it."""
        if self.lora is None:
            model.save_pretrained(folder, state_dict={name: _half(value) for name, value in model.state_dict().items()})
            tokenizer.save_pretrained(folder)
        else:  # the tokenizer is the base's
            write_lora(folder, model, self.lora, self.base, half=True)


def write_model(folder: Path, model: Any, tokenizer: Tokenizer, weights: Weights | None = None) -> None:
    """The model, its tokenizer, and the checkpoint as the course's chapters read it."""
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    if model.config.model_type == "scratch":
        tensors = {name: tensor.cpu() for name, tensor in {**model.state_dict(), **(weights or {})}.items()}
        with atomic_file(folder / CHECKPOINT) as path:
            torch.save({"h_params": h_params(model.config), "model_state_dict": tensors}, path)


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
