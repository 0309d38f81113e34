"""Mistral: Llama's blocks, whose attention looks back over a sliding window."""

from __future__ import annotations

from glassformer.blueprints.mistral import Config
from glassformer.families import llama


class MistralModel(llama.LlamaModel):
    family = "Mistral"
    config_class = Config


Model = MistralModel
