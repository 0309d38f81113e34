"""A trained LoRA as peft saves it: adapter_config.json and adapter_model.safetensors.

Shapes: a (rank, inputs), b (outputs, rank).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from glassformer.adapters.peft_adapter import CONFIG, PREFIX, WEIGHTS
from glassformer.ground.files import atomic_save, write_error

Matrix = np.ndarray[Any, Any]
SAVED_WEIGHTS = re.compile(r"adapter_model.*\.(safetensors|bin)")  # what an earlier save may have left


@dataclass(frozen=True)
class LoraDescription:
    """What adapter_config.json says of an adapter."""

    base: str  # the model's name or path
    rank: int
    alpha: float
    targets: Sequence[str]  # endings of modules' names, or whole names
    dropout: float = 0.0  # that it was trained with
    columns: bool = False  # whether the base has its matrices as (inputs, outputs), as GPT-2


def write_adapter(folder: Path, description: LoraDescription, updates: Mapping[str, tuple[Matrix, Matrix]]) -> None:
    """Updates, each as a and b, by module, into a folder; an adapter that is there stays until the new one is whole."""
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": description.base,
        "r": description.rank, "lora_alpha": description.alpha, "lora_dropout": description.dropout,
        "target_modules": list(description.targets), "bias": "none", "fan_in_fan_out": description.columns,
        "inference_mode": True,
    }  # fmt: skip
    tensors: dict[str, Matrix] = {}
    for module, (a, b) in updates.items():
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.ascontiguousarray(a)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = np.ascontiguousarray(b)
    with atomic_save(folder, CONFIG, SAVED_WEIGHTS.fullmatch) as work:
        (work / CONFIG).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        try:
            save_file(tensors, work / WEIGHTS[0], metadata={"format": "pt"})
        except SafetensorError as error:  # its errors of writing are no OSError
            raise write_error(folder, str(error)) from error
