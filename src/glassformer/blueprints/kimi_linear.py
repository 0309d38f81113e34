"""Kimi Linear (https://arxiv.org/abs/2510.26692): three layers with a state, each row of which decays by itself, for each
that attends to latents without positions; DeepSeek-V3's experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama, mixtral, mla, routed
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.gated_delta import L2_EPS
from glassformer.blueprints.layer_types import FULL
from glassformer.ground.errors import ConfigError

EXPERTS = "block_sparse_moe"
NESTED = {  # what published files have in an object of its own
    "head_dim": "linear_head_dim", "num_heads": "linear_num_heads", "short_conv_kernel_size": "linear_conv_kernel_dim",
}  # fmt: skip


@dataclass(kw_only=True)
class Config(layer_types.TwoKindsConfig, mla.Config, routed.ListedConfig):
    model_type = "kimi_linear"
    title = "Kimi Linear"
    default_fields = {
        "vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 27, "bos_token_id": 163584,
        "eos_token_id": 163586, "pad_token_id": 163839,
    }  # fmt: skip
    aliases = {
        "model_max_length": "max_position_embeddings", "num_experts_per_token": "num_experts_per_tok",
        "moe_renormalize": "norm_topk_prob", "num_shared_experts": "n_shared_experts", "num_expert_group": "n_group",
    }  # fmt: skip
    fixed_fields = {
        **mla.Config.fixed_fields, "mla_use_nope": True, "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid",
        "use_grouped_topk": True, "tie_word_embeddings": False,
    }  # fmt: skip
    default_period = 4
    other_kind = "linear_attention"

    intermediate_size: int = 9216  # of layers without experts
    max_position_embeddings: int = 1048576
    rms_norm_eps: float = 1e-5
    q_lora_rank: int | None = None
    num_experts: int = 256
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 1024
    routed_scaling_factor: float = 2.446
    linear_head_dim: int = 128
    linear_num_heads: int = 32
    linear_conv_kernel_dim: int = 4

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        """Published files number their layers from one, in two lists; what RoPE would be is said, and not used."""
        nested = layer_types.object_field(raw.pop("linear_attn_config", None), "linear_attn_config")
        layers = raw.get("num_hidden_layers")
        raw |= {field: nested[name] for name, field in NESTED.items() if name in nested}
        if raw.get("layer_types") is None and isinstance(layers, int):
            attending = [*range(cls.default_period + 1, layers + 1, cls.default_period)]
            if {"full_attn_layers", "kda_layers"} <= nested.keys():
                attending = attending_layers(nested["full_attn_layers"], nested["kda_layers"], layers)
            raw["layer_types"] = [FULL if layer + 1 in attending else cls.other_kind for layer in range(layers)]
        ropes = ("rope_theta", "rope_scaling", "rope_parameters")
        return super().prepare({name: value for name, value in raw.items() if name not in ropes})

    @property
    def state_columns(self) -> int:
        """How wide all heads that keep a state are together."""
        return self.linear_num_heads * self.linear_head_dim

    @property
    def ropes(self) -> Mapping[str, Any]:
        return {}

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        del raw["rope_parameters"]
        return raw


def attending_layers(attending: Any, others: Any, layers: int) -> list[int]:
    """The numbers of the layers that attend, refused unless the two lists have each layer once."""
    both = attending + others if isinstance(attending, list) and isinstance(others, list) else []
    if not all(type(number) is int for number in both) or sorted(both) != list(range(1, layers + 1)):
        raise ConfigError(
            f"config field 'linear_attn_config' must have each of the {layers} layers once, counted from 1, in "
            "'full_attn_layers' or in 'kda_layers'."
        )
    return list(attending)


FAMILY = replace(
    llama.FAMILY,
    name="KimiLinear",
    heads=("causal",),
    modules={
        **mla.FAMILY_MODULES,
        f"layers.*[{EXPERTS}]": f"DecoderLayer self_attn {EXPERTS}",
        "self_attn[q_conv1d]": "DeltaAttention q_proj k_proj v_proj q_conv1d k_conv1d v_conv1d f_a_proj f_b_proj b_proj "
        "g_a_proj g_b_proj o_norm o_proj",
        EXPERTS: "MoE gate experts shared_experts",
        "experts.*": "MLP w1 w2 w3",
    },
)


def remembering(b: Builder, c: Config, h: Value) -> Value:
    """Heads with a state by the gated delta rule: queries, keys and values go through a short convolution each, and what
    each row of a state keeps, and what of the outputs is let through, is made by two small projections in a row."""
    module, heads, size, wide = "self_attn", c.linear_num_heads, c.linear_head_dim, c.state_columns

    def convolved(name: str) -> Value:
        made = b.linear(h, f"{module}.{name}_proj", wide)
        return b.causal_conv(made, f"{module}.{name}_conv1d", c.linear_conv_kernel_dim, c.hidden_act)

    def through(name: str) -> Value:
        return b.linear(b.linear(h, f"{module}.{name}_a_proj", size), f"{module}.{name}_b_proj", wide)

    query, key = (
        b.l2_norm(b.heads_at(convolved(name), module, 0, heads, size), module, L2_EPS, site)
        for name, site in (("q", "attention.query"), ("k", "attention.key"))
    )
    value = b.heads_at(convolved("v"), module, 0, heads, size, site="attention.value")
    step = b.time_step(through("f"), f"{module}.dt_bias")
    decay = b.decay(step, f"{module}.A_log", "attention.row_decay", heads)
    write = b.activate(b.linear(h, f"{module}.b_proj", heads), "sigmoid", "attention.write")
    read = b.recur(query, key, value, decay, write, module, delta=True, scale=size**-0.5)
    read = b.norm(read, f"{module}.o_norm", c.rms_norm_eps, groups=heads, shared=True)
    return b.linear(b.gated(through("g"), read, "sigmoid", module), f"{module}.o_proj", c.hidden_size,
                    site="attention.update")  # fmt: skip


def attending(b: Builder, c: Config, h: Value) -> Value:
    joined = mla.attention(b, c, h, rotates=False)
    return b.linear(joined, "self_attn.o_proj", c.hidden_size, c.attention_bias, site="attention.update")


def some_experts(b: Builder, c: Config, x: Value) -> Value:
    if b.layer not in c.routed_layers:
        return llama.gated_mlp(b, c, x)
    correction = f"{EXPERTS}.gate.e_score_correction_bias"
    names = {"names": mixtral.EXPERT, "shared_names": routed.PROJECTIONS}
    return routed.grouped_mlp(b, c, x, module=EXPERTS, correction=correction, **names)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input")
            x = b.add(x, (attending if c.is_full(layer) else remembering)(b, c, h), site="middle")
            h = b.norm(x, "post_attention_layernorm", eps, site="mlp.input")
            x = b.add(x, some_experts(b, c, h), site="residual")
    return b.build_with_head(b.norm(x, f"{base}norm", eps, site="final"), head)
