"""Sizes of models that are trained from scratch, and settings that suit them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from glassformer.blueprints import Config, model_types, module_for, read_config
from glassformer.ground.errors import SettingError, did_you_mean, spell
from glassformer.text import Tokenizer
from glassformer.training.settings import TrainingSettings


@dataclass(frozen=True)
class Preset:
    hidden_size: int
    layers: int
    heads: int
    length: int  # tokens of a window, and the model's context
    vocabulary: int  # of a new tokenizer
    settings: TrainingSettings
    dropout: float = 0.0
    more: Mapping[str, Any] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset(  # 1.3 million parameters
        128, 4, 4, 128, 2048,
        TrainingSettings(
            steps=300, batch_size=16, learning_rate=2e-3, weight_decay=0.1, evaluate_every=150, save_every=150,
            evaluation_examples=64,
        ),
    ),
    "small": Preset(  # 10 million
        384, 6, 6, 256, 8192,
        TrainingSettings(steps=5000, batch_size=64, learning_rate=1e-3, evaluate_every=250, save_every=500),
        dropout=0.1,
    ),
    "gpt2": Preset(  # 124 million
        768, 12, 12, 1024, 50304,
        TrainingSettings(
            steps=20_000, batch_size=256, micro_batch_size=32, learning_rate=6e-4, precision="bfloat16", compile=True,
            evaluate_every=500, save_every=1000,
        ),
    ),
}  # fmt: skip
DROPOUTS = (  # as the families' configs name it
    "dropout", "attention_dropout", "dropout_rate", "hidden_dropout_prob", "attention_probs_dropout_prob", "embd_pdrop",
    "attn_pdrop", "resid_pdrop", "hidden_dropout", "embedding_dropout", "mlp_dropout", "residual_dropout",
)  # fmt: skip


def find_preset(name: str, **sizes: Any) -> Preset:
    """A preset by its name, with other sizes where they are not None."""
    if name not in PRESETS:
        raise SettingError(f"{spell('preset', name)} is not one of {', '.join(PRESETS)}.{did_you_mean(name, PRESETS)}")
    return replace(PRESETS[name], **{size: value for size, value in sizes.items() if value is not None})


def find_family(architecture: str) -> type[Config]:
    """The config class of a family."""
    if architecture not in model_types():
        raise SettingError(
            f"{spell('arch', architecture)} is no family.{did_you_mean(architecture, model_types())} Known: "
            f"{', '.join(model_types())}."
        )
    kind: type[Config] = module_for(architecture).Config
    return kind


def config_of(preset: Preset, architecture: str, tokenizer: Tokenizer) -> Config:
    """A family's config in a preset's size, for a tokenizer: of all that families have, what this one has."""
    family = find_family(architecture)
    hidden, layers, heads = preset.hidden_size, preset.layers, preset.heads
    end = first_known(tokenizer.eos_token_id, tokenizer.sep_token_id)
    pad = first_known(tokenizer.pad_token_id, end)
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": hidden, "max_position_embeddings": preset.length,
        "num_hidden_layers": layers, "num_encoder_layers": layers, "num_attention_heads": heads,
        "encoder_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads,
        "intermediate_size": 4 * hidden, "encoder_ffn_dim": 4 * hidden, "decoder_ffn_dim": 4 * hidden,
        "bos_token_id": first_known(tokenizer.bos_token_id, tokenizer.cls_token_id, end), "eos_token_id": end,
        "pad_token_id": pad, "decoder_start_token_id": pad, "forced_eos_token_id": None,
        "tie_word_embeddings": architecture != "scratch",  # the course's has a matrix of its own
        **dict.fromkeys(DROPOUTS, preset.dropout),
    }  # fmt: skip
    names = {field.name for field in fields(family)}
    config = read_config({"model_type": architecture, **{name: value for name, value in sizes.items() if name in names}})
    if (lacking := preset.length - config.context) > 0:  # RoBERTa's positions begin after the padding id
        config = config.with_changes({"max_position_embeddings": config.max_position_embeddings + lacking})
    return config


def first_known(*ids: int | None) -> int | None:
    """The first id that there is."""
    return next((token for token in ids if token is not None), None)
