"""Ministral 3 (https://huggingface.co/mistralai/Ministral-3-8B-Base-2512): Mistral's shape, scores scaled by position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama, mistral
from glassformer.blueprints.blueprint import Blueprint, Head
from glassformer.ops.positions import PositionScale
from glassformer.ops.rope import number

BETA, TRAINED = "llama_4_scaling_beta", "original_max_position_embeddings"


@dataclass(kw_only=True)
class Config(mistral.Config):
    model_type = "ministral3"
    title = "Ministral 3"
    default_theta = 1_000_000.0
    default_rope = {
        "rope_type": "yarn", "rope_theta": default_theta, "factor": 16.0, TRAINED: 16384, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, BETA: 0.1,
    }  # fmt: skip
    default_fields = {
        "vocab_size": 131072, "hidden_size": 4096, "num_hidden_layers": 34, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 11,
    }  # fmt: skip

    head_dim: int = 128
    max_position_embeddings: int = 262144
    rms_norm_eps: float = 1e-5
    position_scale: PositionScale | None = None  # of attention's scores

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Its files say among RoPE's settings how scores are scaled."""
        name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
        rope = layer_types.object_field(raw.get(name), name) or cls.default_rope
        prepared = super().prepare(raw)
        if rope.get(BETA):
            prepared["position_scale"] = PositionScale(number(rope[BETA], BETA), int(number(rope.get(TRAINED), TRAINED)))
        return prepared

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        scale: PositionScale | None = raw.pop("position_scale")
        if scale is not None:
            raw["rope_parameters"] = {**raw["rope_parameters"], BETA: scale.beta, TRAINED: scale.length}
        return raw


FAMILY = replace(llama.FAMILY, name="Ministral3", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, position_scale=c.position_scale)
