"""Hunyuan, dense (https://huggingface.co/tencent/Hunyuan-7B-Instruct): Llama's shape, with norms on queries and keys after RoPE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ops.rope import Rope


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
        rope = layer_types.rope_object(raw.get(name), name)
        alpha, size = rope.get("alpha"), raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
        if alpha and rope.get("rope_type", rope.get("type")) == "dynamic":
            plain = Rope.read({**raw, name: {**rope, "rope_type": "default"}}, cls.default_theta)
            theta = plain.theta * alpha ** (size / (size - 2))
            raw = {**raw, "rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
        return super().prepare(raw)


FAMILY = replace(llama.FAMILY, name="HunYuanDenseV1")


def normed(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    query, key = (b.rotate(heads, "self_attn", c.rope) for heads in (query, key))
    return (
        b.norm(query, "self_attn.query_layernorm", c.rms_norm_eps, site="attention.query"),
        b.norm(key, "self_attn.key_layernorm", c.rms_norm_eps, site="attention.key"),
    )


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, prepare_query_key=normed)
