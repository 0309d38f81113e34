"""Qwen3's mixtures of experts (https://arxiv.org/abs/2505.09388): Qwen3's shape with experts in all layers, or in some."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, qwen3, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.ground.errors import ConfigError


@dataclass(kw_only=True)
class SomeExperts(routed.Config):
    """There are experts in every n-th layer, and in some of these none. A mixin, put after a family's own."""

    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None  # that have none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlp_only_layers is None:
            object.__setattr__(self, "mlp_only_layers", [])
        if wrong := [layer for layer in self.mlp_only_layers or () if layer >= self.num_hidden_layers]:
            raise ConfigError(
                f"config field 'mlp_only_layers' has {wrong[0]}, but the model has {self.num_hidden_layers} layers."
            )

    @property
    def routed_layers(self) -> tuple[int, ...]:
        dense = self.mlp_only_layers or ()
        every = self.decoder_sparse_step
        return tuple(n for n in range(self.num_hidden_layers) if n not in dense and (n + 1) % every == 0)


@dataclass(kw_only=True)
class Config(qwen3.Config, SomeExperts):
    model_type = "qwen3_moe"
    title = "Qwen3-MoE"
    default_fields = {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24}

    intermediate_size: int = 6144  # of layers without experts
    num_key_value_heads: int = 4
    head_dim: int = 0
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768

    def window(self, layer: int) -> int | None:
        return self.sliding_window if self.use_sliding_window else None


FAMILY = replace(
    llama.FAMILY,
    name="Qwen3Moe",
    modules={**llama.FAMILY.modules, "experts.*": "MLP gate_proj up_proj down_proj"},
)


def some_experts(b: Builder, c: Config, x: Value) -> Value:
    return routed.routed_mlp(b, c, x) if b.layer in c.routed_layers else llama.gated_mlp(b, c, x)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return llama.blueprint(c, head, prepare_query_key=qwen3.normed, mlp=some_experts)
