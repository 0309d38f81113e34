"""The model that a training goes on from: all of it is trained, or updates beside it while it stays as it is."""

from __future__ import annotations

import logging
from typing import Any

import torch

from glassformer.adapters import is_adapter
from glassformer.blueprints import Head
from glassformer.checkpoint.locate import locate
from glassformer.compat.auto import model_class_for_head
from glassformer.ground.errors import SettingError, spell
from glassformer.model_files import open_model
from glassformer.training.lora import LoraSettings, add_lora
from glassformer.training.settings import TrainingSettings

note = logging.getLogger("glassformer").warning


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
        numbers = sum(tensor.elements for tensor in opened.tensors.values())
        size = numbers * dtype.itemsize / 1e6
        note(f"{name}: its {opened.kind} weights are expanded to be trained with: {size:,.0f} MB.")
    model = model_class_for_head(opened.config.model_type, head).from_pretrained(name, dtype=dtype)
    if lora is not None:
        torch.manual_seed(settings.seed)
        add_lora(model, lora)
    return model
