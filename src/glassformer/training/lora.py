"""Low-rank adaptation (https://arxiv.org/abs/2106.09685): the weights stay as they are, and two thin matrices beside each
projection are trained, whose product is added to it.

Shapes: a (rank, inputs), b (outputs, rank).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.adapters import LoraDescription, adaptable_modules, write_adapter
from glassformer.blueprints import blueprint
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.ground.errors import SettingError, did_you_mean, spell
from glassformer.torch.layers import Conv1D, Linear, LowRankUpdate, with_low_rank_update
from glassformer.training.settings import check_above_zero, check_share

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """What is trained beside a frozen model."""

    rank: int
    alpha: float | None = None  # the update is multiplied by alpha / rank; None: twice the rank
    targets: str = ALL_LINEAR  # every projection of the blocks, or endings of modules' names: "q_proj,v_proj"
    dropout: float = 0.0  # of what an update reads

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise SettingError(f"{spell('lora', self.rank)} is no rank: give a whole number from 1, such as 8.")
        check_above_zero("lora_alpha", self.alpha, ": give twice the rank, or leave it out.")
        check_share("lora_dropout", self.dropout)

    @property
    def alpha_or_default(self) -> float:
        return 2 * self.rank if self.alpha is None else self.alpha


def add_lora(model: Any, lora: LoraSettings) -> None:
    """Freeze a model, and put updates beside its layers: A random, B zero, so that it begins as what it was."""
    names = target_modules(model, lora.targets)
    model.requires_grad_(False)
    for name in names:
        layer = model.get_submodule(name)
        with torch.device("meta"):  # all of its numbers come from elsewhere
            adapted = with_low_rank_update(layer, lora.rank)
        adapted.weight, adapted.bias = layer.weight, layer.bias
        a = torch.empty(adapted.lora_A.weight.shape)
        nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        adapted.lora_A.weight = nn.Parameter(a)
        adapted.lora_B.weight = nn.Parameter(torch.zeros(adapted.lora_B.weight.shape))
        adapted.scale, adapted.dropout = lora.alpha_or_default / lora.rank, lora.dropout
        holder, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(holder), attribute, adapted.train(layer.training))


def target_modules(model: Any, targets: str) -> list[str]:
    """The names of the layers that updates stand beside."""
    layers = {name: module for name, module in model.named_modules() if type(module) in (Linear, Conv1D)}
    possible = dict.fromkeys(adaptable_modules(blueprint(model.config, model.head_kind)))
    adaptable = list(resolve_names(possible, tuple(layers)))
    if targets == ALL_LINEAR:
        return adaptable
    endings = [ending.strip() for ending in targets.split(",") if ending.strip()]
    known = sorted({name.rpartition(".")[2] for name in adaptable})
    for ending in endings:
        if not _matching(adaptable, [ending]):
            raise SettingError(
                f"{spell('lora_targets', ending)}: the model has no such projection.{did_you_mean(ending, known)} It has: "
                f"{', '.join(known)}; {ALL_LINEAR} means all of them."
            )
    if not endings:
        raise SettingError(
            f"{spell('lora_targets', targets)} names no module. Give {ALL_LINEAR}, or some of: {', '.join(known)}."
        )
    return _matching(adaptable, endings)


def _matching(names: Sequence[str], endings: Sequence[str]) -> list[str]:
    """By peft's rule: a module's name, or the end of it."""
    return [name for name in names if any(name == ending or name.endswith(f".{ending}") for ending in endings)]


def lora_layers(model: nn.Module) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LowRankUpdate)}


def write_lora(
    folder: Path,
    model: nn.Module,
    lora: LoraSettings,
    base: str,
    weights: Mapping[str, Tensor] | None = None,
    half: bool = False,
) -> None:
    """A trained model's updates in peft's format.

    `base`: the name of the model that was trained. `weights`: by name, where this process has only a part of them.
    `half`: in float16.
    """
    layers = lora_layers(model)
    base_name = os.fspath(Path(base).resolve()) if Path(base).exists() else base  # opened from anywhere
    columns = any(isinstance(layer, Conv1D) for layer in layers.values())
    description = LoraDescription(
        base_name, lora.rank, lora.alpha_or_default, _shortest_targets(model, list(layers)), lora.dropout, columns
    )
    tensors = {**dict(model.named_parameters()), **(weights or {})}

    def matrix(name: str) -> Any:
        return tensors[name].detach().to("cpu", torch.float16 if half else torch.float32).numpy()

    updates = {name: (matrix(f"{name}.lora_A.weight"), matrix(f"{name}.lora_B.weight")) for name in layers}
    write_adapter(folder, description, updates)


def _shortest_targets(model: nn.Module, names: Sequence[str]) -> list[str]:
    """The last words of modules' names where these mean them alone; else the whole names."""
    endings = sorted({name.rpartition(".")[2] for name in names})
    parts = (".lora_A", ".lora_B")
    others = [name for name, module in model.named_modules() if name not in names and not name.endswith(parts)]
    return list(names) if _matching(others, endings) else endings
