"""A model's weights, in files or in memory: opened with adapters and in another kind, read by name, and digested."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.blueprints import Blueprint, Head, blueprint
from glassformer.checkpoint.content_digest import content_digest, stored_files
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.sentence_pooling import SentenceSettings
from glassformer.checkpoint.stored_tensors import ComputedFile
from glassformer.decoding import GenerationConfig
from glassformer.engine.bridge.files import BridgedFiles, bridged, check_bridged_options
from glassformer.ground.errors import InputError, did_you_mean, spell
from glassformer.ground.progress import NamedProgress
from glassformer.model_files import (
    AdapterNames,
    ModelFiles,
    adapter_weights,
    check_adapter_mode,
    open_base,
    with_adapters,
)
from glassformer.text import Tokenizer

Floats: TypeAlias = npt.NDArray[np.float32]
note = logging.getLogger("glassformer").warning


@dataclass(frozen=True)
class InMemory:
    """A model of an Auto class and its tokenizer, with the attributes of a `ModelFiles`."""

    module: Any
    tokenizer: Tokenizer
    sentence: SentenceSettings = field(default_factory=SentenceSettings)

    @property
    def name(self) -> str:
        return type(self.module).__name__

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def settings(self) -> GenerationConfig:
        settings: GenerationConfig = self.module.generation_config
        return settings

    @property
    def head(self) -> Head:
        return getattr(self.module, "head_kind", "base")

    @property
    def kind(self) -> str:
        return str(self.module.dtype).removeprefix("torch.")

    @property
    def kind_text(self) -> str:
        return self.kind

    @property
    def packed(self) -> bool:
        return False

    def blueprint(self) -> Blueprint:
        return blueprint(self.config, self.head)


def open_weights(
    name: str | os.PathLike[str], weights: str | None, adapter: AdapterNames | None, adapter_mode: str,
    progress: NamedProgress | None, dtype: str | None = None,
) -> ModelFiles:  # fmt: skip
    """A model with its adapters; it is quantized after they are merged, but before they stand beside it.

    `dtype`: what PyTorch computes in, for a model that transformers computes.
    """
    check_adapter_mode(adapter_mode)
    opened, own_adapter = open_base(name, progress=progress)
    opened = bridged(opened, dtype)
    if isinstance(opened, BridgedFiles):
        check_bridged_options(opened, weights=weights, adapter=adapter or own_adapter)
        return opened
    if weights is None and (method := opened.packed_by) is not None:
        expanded = [
            tensor for tensor in opened.tensors.values() if isinstance(tensor.file, ComputedFile) and not tensor.packed
        ]
        if expanded:
            size = sum(tensor.size for tensor in expanded) / 1e6
            note(
                f"{opened.name}: {len(expanded)} of its matrices are packed by {method}, and become F32: {size:,.1f} MB. "
                f"{spell('weights', 'q8_0')} packs them again."
            )
    names = {} if own_adapter is None else {own_adapter: 1.0}
    names |= dict(() if adapter is None else adapter_weights(adapter))
    apply = partial(with_adapters, adapter=names, mode=adapter_mode, progress=progress)
    steps: list[Callable[[ModelFiles], ModelFiles]] = [apply] if names else []
    if weights is not None:
        from glassformer.quantize import requantized

        steps.insert(0 if adapter_mode == "beside" else len(steps), partial(requantized, kind=weights, progress=progress))
    for step in steps:
        opened = step(opened)
    return opened


def read_weight(
    opened: ModelFiles | InMemory, blueprint: Blueprint, name: str, row: int | Sequence[int] | None = None
) -> Floats | None:
    """A weight in float32, or some rows of it; None where the family has it and the checkpoint leaves it out."""
    weights: Any = opened.module.state_dict() if isinstance(opened, InMemory) else opened.tensors
    weight = weights[name] if name in weights else resolve_names(weights, [name]).get(name)
    if weight is None:
        known = {*weights, *(weight.name for op in blueprint.ops for weight in op.weights), *blueprint.optional_weights}
        if name not in known:
            raise InputError(
                f"{opened.name} has no weight {name!r}.{did_you_mean(name, known)} model.parameters() lists all of them."
            )
        return None
    rows = [row] if isinstance(row, int) else row
    if rows is not None and not (weight.shape and rows and 0 <= min(rows) <= max(rows) < weight.shape[0]):
        raise InputError(f"there is no row {row} in {name}, whose shape is {[*weight.shape]}. They count from 0.")
    values: Floats
    if isinstance(opened, InMemory):
        values = (weight if rows is None else weight[_indices(rows)]).float().cpu().numpy()
    else:
        values = weight.to_float32() if rows is None else weight.rows_to_float32(_indices(rows))
    return values[0] if isinstance(row, int) else values


def _indices(rows: Sequence[int]) -> slice | list[int]:
    """Rows to select; those that follow one another without copying them."""
    return slice(rows.start, rows.stop) if isinstance(rows, range) and rows.step == 1 else list(rows)


def weights_digest(opened: ModelFiles | InMemory) -> str:
    """A SHA-256 of the weights, by which a file that was made for them recognises them."""
    digest = hashlib.sha256()
    if isinstance(opened, InMemory):
        for name, weight in opened.module.state_dict().items():
            digest.update(name.encode())
            digest.update(weight.detach().float().cpu().numpy().tobytes())
        return digest.hexdigest()
    files, recipes = stored_files(tensor.file for tensor in opened.tensors.values())
    for part in (*(content_digest(files[path]) for path in sorted(files)), *recipes):
        digest.update(part.encode())
    return digest.hexdigest()
