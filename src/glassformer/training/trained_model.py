"""The model of a training as files: one to go on from, and the trained one, which every part of the package opens.

A trained model is a folder; the course's has its `model.ckpt` too. Snapshots are the model as it was after a few of its
steps, to see how it learned:

    snapshots/step-00000064/   config.json, model.safetensors (float16), the tokenizer: a model that every command opens

Much happens in the first steps and little in the last, so half of them are spaced by a factor, from the untrained model on;
the others are those of evaluations, whose losses are known. Which steps follows from the settings alone, so a training that
was stopped keeps those of an unbroken one. Rounding to float16 halves the size, and changes a loss in its fourth
digit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.adapters import is_adapter
from glassformer.blueprints import Head
from glassformer.checkpoint.locate import locate
from glassformer.checkpoint.training_layout import SNAPSHOTS
from glassformer.compat.auto import AutoModelForCausalLM, model_class_for_head
from glassformer.ground.errors import SettingError, spell
from glassformer.ground.files import atomic_file
from glassformer.model_files import open_model
from glassformer.text import Tokenizer
from glassformer.training.lora import LoraSettings, add_lora, write_lora
from glassformer.training.settings import TrainingSettings
from glassformer.training.training_folder import write_step

note = logging.getLogger("glassformer").warning
CHECKPOINT = "model.ckpt"
ADAPTER = "adapter"  # the folder of the updates beside a merged model
Weights = Mapping[str, Tensor]  # by name, where the model itself has only a part of them
DEFAULT_COUNT = 16  # of snapshots
FEW, STEPS_EACH = 4, 4  # of a short training: snapshots at least, or steps for each
DEFAULT_BYTES = 2_000_000_000  # of all snapshots, unless their count is given


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


def snapshot_steps(steps: int, evaluate_every: int, count: int) -> tuple[int, ...]:
    """After which steps of a training the model is kept: at most `count`, the first and the last among them.

    >>> snapshot_steps(900, 150, 12)
    (0, 1, 4, 15, 59, 150, 300, 450, 600, 750, 900)
    >>> snapshot_steps(900, 150, 2), snapshot_steps(900, 150, 1), snapshot_steps(900, 150, 0)
    ((0, 900), (900,), ())
    """
    if count < 2:
        return (steps,)[:count]
    kept = {0, steps}
    factors = count // 2 - 1
    kept |= {_near(round(steps ** (index / factors)), evaluate_every) for index in range(factors)}
    kept = {min(step, steps) for step in kept}
    evaluations = [step for step in range(evaluate_every, steps, evaluate_every) if step not in kept]
    return tuple(sorted(kept | set(_spread(evaluations, count - len(kept)))))


def _near(step: int, evaluate_every: int) -> int:
    """The evaluation that is nearest to a step, if one comes before it."""
    return step if step < evaluate_every else evaluate_every * round(step / evaluate_every)


def _spread(items: list[int], count: int) -> list[int]:
    """At most `count` of a list, evenly.

    >>> _spread([1, 2, 3, 4, 5, 6], 2)
    [2, 5]
    """
    count = min(count, len(items))
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]


@dataclass(frozen=True)
class Snapshots:
    """Which snapshots a training keeps, and where."""

    path: Path  # of the training's folder
    tokenizer: Tokenizer
    settings: TrainingSettings
    writer: ModelWriter = field(default_factory=ModelWriter)

    def steps(self, model: Any) -> frozenset[int]:
        """After which steps this model is kept. Unless their count is given, they take up a bounded space."""
        count = self.settings.snapshots
        if count is None:
            size = 2 * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
            wanted = min(DEFAULT_COUNT, max(FEW, self.settings.steps // STEPS_EACH))
            count = max(2, min(wanted, DEFAULT_BYTES // max(1, size)))
        return frozenset(snapshot_steps(self.settings.steps, self.settings.evaluate_every, count))

    def keep(self, step: int, model: Any) -> Path:
        """Write the model as it is; one that is there already was written before the training was stopped."""
        return write_step(
            self.path / SNAPSHOTS, step, lambda folder: self.writer.write_snapshot(folder, model, self.tokenizer)
        )
