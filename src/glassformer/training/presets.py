"""Sizes of models that are trained from scratch, and settings that suit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints import Config, model_types, read_config
from glassformer.errors import SettingError, did_you_mean, spell
from glassformer.training.settings import TrainingSettings


@dataclass(frozen=True)
class Preset:
    about: str
    hidden_size: int
    layers: int
    heads: int
    length: int  # tokens of a window, and the model's context
    vocabulary: int  # of a new tokenizer
    settings: TrainingSettings
    dropout: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset(
        "1.3 million parameters: three minutes on two cores", 128, 4, 4, 128, 2048,
        TrainingSettings(
            steps=900, batch_size=16, learning_rate=2e-3, weight_decay=0.1, evaluate_every=150, save_every=150,
            evaluation_examples=64,
        ),
    ),
    "small": Preset(
        "10 million parameters: hours on two cores, minutes on a GPU", 384, 6, 6, 256, 8192,
        TrainingSettings(steps=5000, batch_size=64, learning_rate=1e-3, evaluate_every=250, save_every=500),
        dropout=0.1,
    ),
    "gpt2": Preset(
        "124 million parameters, GPT-2's shape: for a GPU", 768, 12, 12, 1024, 50304,
        TrainingSettings(
            steps=20_000, batch_size=256, micro_batch_size=32, learning_rate=6e-4, precision="bfloat16", compile=True,
            evaluate_every=500, save_every=1000,
        ),
    ),
}  # fmt: skip
DECODER: Mapping[str, str] = {"intermediate_size": "4 * hidden_size"}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise SettingError(f"{spell('preset', name)} is not one of {', '.join(PRESETS)}.{did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def config_of(preset: Preset, architecture: str, vocabulary: int, end: int | None) -> Config:
    """A family's config in a preset's size."""
    if architecture not in model_types():
        raise SettingError(
            f"{spell('arch', architecture)} is no family.{did_you_mean(architecture, model_types())} Known: "
            f"{', '.join(model_types())}."
        )
    hidden, layers, heads = preset.hidden_size, preset.layers, preset.heads
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "max_position_embeddings": preset.length, "intermediate_size": 4 * hidden, "bos_token_id": end, "eos_token_id": end,
        "pad_token_id": end, "dropout": preset.dropout,
    }  # fmt: skip
    if architecture in ("t5",):
        sizes |= {"d_kv": hidden // heads, "decoder_start_token_id": end, "dropout_rate": preset.dropout}
    elif architecture != "scratch":
        sizes |= {"head_dim": hidden // heads, "num_key_value_heads": heads, "tie_word_embeddings": True}
    return read_config({"model_type": architecture, **sizes})
