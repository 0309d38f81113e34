"""The tuned lens (Belrose et al. 2023): for each layer an affine map into the last layer's language.

The logit lens reads every layer through the last norm and the head, which were trained for the last layer alone. A tuned
lens puts a map before them, h + A·h + b, trained so that the prediction diverges least from the model's own.

Shapes: states (positions, hidden); weight (hidden, hidden), bias (hidden).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError
from glassformer.observe.activations import residual_sites
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.observe.tensor_files import load_tensors, model_metadata, save_maps
from glassformer.views.lens_training import LensTraining

FORMAT = "glassformer.tuned-lens/1"


@dataclass(frozen=True, eq=False)
class Translator:
    """The map of one layer."""

    weight: Floats
    bias: Floats

    def __call__(self, states: Floats) -> Floats:
        translated: Floats = states + states @ self.weight.T + self.bias
        return translated


@checked_class
@dataclass(frozen=True, eq=False, repr=False)
class TunedLens:
    """The maps of all layers but the last, which needs none; `view` says what they brought."""

    model: ModelLike
    translators: Mapping[str, Translator]  # by layer: 'embedding', then each block's number
    view: LensTraining | None = None  # of a lens that was just trained

    def __repr__(self) -> str:
        return f"TunedLens({self.model.name}, {len(self.translators)} layers)"

    def translate(self, layer: str, states: Floats) -> Floats:
        """A layer's states as the last layer would have them."""
        return self.translators[layer](states) if layer in self.translators else states

    def check(self, model: ModelLike) -> None:
        """Refuse a model that it was not trained with."""
        if model is not self.model and model.weights_digest != self.model.weights_digest:
            raise InputError(f"the tuned lens was trained with {self.model.name}, not with {model.name}. Train one with it.")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as safetensors, with the digest of the model's weights."""
        return save_maps(path, self.translators, model_metadata(self.model, FORMAT))


def load_tuned_lens(path: str | os.PathLike[str], model: ModelLike) -> TunedLens:
    """A tuned lens that `save` wrote, for the model that it was trained with."""
    file = Path(path)
    arrays, _ = load_tensors(file, FORMAT, model)
    hidden = model.config.hidden_size
    *layers, _ = residual_sites(model.blueprint)
    shapes = {
        f"{layer}.{name}": shape for layer in layers for name, shape in (("weight", (hidden, hidden)), ("bias", (hidden,)))
    }
    if {name: array.shape for name, array in arrays.items()} != shapes:
        raise InputError(f"{file}: does not have a map for each layer of {model.name}. Train it again.")
    return TunedLens(
        model,
        {layer: Translator(np.ascontiguousarray(arrays[f"{layer}.weight"]), arrays[f"{layer}.bias"]) for layer in layers},
    )
