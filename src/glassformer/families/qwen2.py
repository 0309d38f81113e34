"""Qwen2: Llama's blocks, with biases on query, key and value."""

from __future__ import annotations

from glassformer.blueprints.qwen2 import Config
from glassformer.families import llama


class Qwen2Model(llama.LlamaModel):
    family = "Qwen2"
    config_class = Config


Model = Qwen2Model
