"""Qwen3 (https://arxiv.org/abs/2505.09388): Qwen2's shape with a norm on each head's query and key before RoPE."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, qwen2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(qwen2.Config):
    model_type = "qwen3"
    title = "Qwen3"
    fixed_fields = {"mlp_bias": False}

    attention_bias: bool = False
    head_dim: int = 128

    @property
    def output_bias(self) -> bool:
        return self.attention_bias


FAMILY = replace(llama.FAMILY, name="Qwen3")


def normed(b: Builder, c: llama.Config, query: Value, key: Value) -> tuple[Value, Value]:
    query = b.norm(query, "self_attn.q_norm", c.rms_norm_eps)
    key = b.norm(key, "self_attn.k_norm", c.rms_norm_eps)
    return llama.rotated(b, c, query, key)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, prepare_query_key=normed)
