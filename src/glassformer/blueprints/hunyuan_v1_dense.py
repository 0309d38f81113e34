"""Hunyuan, dense (https://huggingface.co/tencent/Hunyuan-7B-Instruct): Llama's shape, queries and keys normed after RoPE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ops.rope import Rope, number


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "hunyuan_v1_dense"
    title = "Hunyuan (dense)"
    default_fields = {
        "vocab_size": 290943, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 0,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False, "use_qk_norm": True, "use_cla": False}

    rms_norm_eps: float = 1e-5

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Its files say how far RoPE's base is raised by another number than others: `alpha`."""
        name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
        rope = layer_types.object_field(raw.get(name), name)
        prepared = super().prepare({**raw, name: {**rope, "rope_type": "default"}} if "alpha" in rope else raw)
        if rope.get("alpha") and rope.get("rope_type", rope.get("type")) == "dynamic":
            config = cls.read({**raw, name: None})  # to know how large a head is
            power = config.head_dim / (config.head_dim - 2)
            plain: Rope = prepared["rope"]
            prepared["rope"] = replace(plain, theta=plain.theta * number(rope["alpha"], "alpha") ** power)
        return prepared


FAMILY = replace(llama.FAMILY, name="HunYuanDenseV1")


def normed(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    query, key = (b.rotate(heads, "self_attn", c.rope) for heads in (query, key))
    return (
        b.norm(query, "self_attn.query_layernorm", c.rms_norm_eps, site="attention.query"),
        b.norm(key, "self_attn.key_layernorm", c.rms_norm_eps, site="attention.key"),
    )


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, prepare_query_key=normed)
