"""Nemotron-H (https://arxiv.org/abs/2504.03624): each block has one part alone: a state, attention, an MLP or experts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import routed, state_space
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head, Value
from glassformer.blueprints.bounds import SIZE, SIZE_OR_DEFAULT
from glassformer.blueprints.state_space import ATTENTION, STATE
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

EXPERTS, MLP = "moe", "mlp"  # what a block may be, beside a state or attention
KINDS = {"M": STATE, "*": ATTENTION, "E": EXPERTS, "-": MLP}  # as older files spell them, a letter for each block


@dataclass(kw_only=True)
class Config(state_space.Config, routed.GroupsConfig):
    model_type = "nemotron_h"
    title = "Nemotron-H"
    default_fields = {
        "vocab_size": 131072, "hidden_size": 4096, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    aliases = {"n_routed_experts": "num_experts", "layers_block_type": "layer_types"}
    fixed_fields = {
        "attention_bias": False, "mamba_proj_bias": False, "sliding_window": None, "tie_word_embeddings": False,
    }  # fmt: skip
    bounds = {
        **state_space.Config.state_bounds, "moe_latent_size": SIZE_OR_DEFAULT,
        **dict.fromkeys(("moe_shared_expert_intermediate_size", "num_key_value_heads", "head_dim"), SIZE),
    }  # fmt: skip
    state_fields = {
        "heads": "mamba_num_heads", "head_size": "mamba_head_dim", "groups": "n_groups", "key_size": "ssm_state_size",
        "kernel": "conv_kernel", "activation": "mamba_hidden_act", "eps": "layer_norm_epsilon", "bias": "use_bias",
        "conv_bias": "use_conv_bias", "output_bias": "use_bias", "least_step": "time_step_min", "norm_groups": "n_groups",
    }  # fmt: skip

    num_hidden_layers: int = 4
    layer_types: list[str] | None = None
    max_position_embeddings: int = 4096
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    attention_dropout: float = 0.0
    intermediate_size: int = 21504
    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    ssm_state_size: int = 128
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    mamba_hidden_act: str = "silu"
    n_groups: int = 8
    conv_kernel: int = 4
    use_conv_bias: bool = True
    use_bias: bool = False
    time_step_min: float = 0.001  # steps are cut there, whatever the limits say
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None  # what experts read and give, made of the stream and made into it; None: the stream
    layer_norm_epsilon: float = 1e-5

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        kinds, pattern = raw.get("layer_types"), raw.pop("hybrid_override_pattern", None)
        if kinds is None and isinstance(pattern, str):
            kinds = [KINDS.get(letter, letter) for letter in pattern]
        if kinds is None:
            kinds = [STATE, EXPERTS, ATTENTION, MLP]
        if isinstance(kinds, list):
            kinds = [state_space.FORMER_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds]
            if isinstance(raw.get("num_hidden_layers", 0), int):
                raw["num_hidden_layers"] = len(kinds)
        if raw.get("num_key_value_heads", 0) is None:  # as many as attention heads
            raw["num_key_value_heads"] = raw.get("num_attention_heads", cls.num_attention_heads)
        return super().prepare(raw | {"layer_types": kinds})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_types is None:
            object.__setattr__(self, "layer_types", [STATE, EXPERTS, ATTENTION, MLP])
        kinds = self.layer_types or []
        if len(kinds) != self.num_hidden_layers or not {*kinds} <= {*KINDS.values()}:
            raise ConfigError(
                f"config field 'layers_block_type' must name one of {', '.join(KINDS.values())} for each block, not "
                f"{brief(kinds)}."
            )
        for name in ("mlp_hidden_act", "mamba_hidden_act"):
            self.check_activation(name)
        self.check_states()
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"config field 'num_key_value_heads' is {self.num_key_value_heads}; it must divide the "
                f"{self.num_attention_heads} attention heads."
            )

    @property
    def state_space(self) -> state_space.StateSpace:
        return replace(super().state_space, most_step=math.inf)

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, kind in enumerate(self.layer_types or ()) if kind == EXPERTS)


FAMILY = Family(
    name="NemotronH",
    base="backbone",
    heads=("causal",),
    modules={
        "": "Model embeddings layers norm_f",
        "layers.*": "Block norm mixer",
        "layers.*.norm": "RMSNorm",
        "norm_f": "RMSNorm",
        "mixer[in_proj]": "Mamba2Mixer conv1d in_proj norm out_proj",
        "mixer[q_proj]": "Attention q_proj k_proj v_proj o_proj",
        "mixer[experts]": "MoE experts gate shared_experts fc1_latent_proj fc2_latent_proj",
        "mixer[act_fn]": "MLP up_proj down_proj act_fn",
        "experts.*": "MLP up_proj down_proj",
        "shared_experts": "MLP up_proj down_proj act_fn",
    },
)


def attention(b: Builder, c: Config, h: Value) -> Value:
    """Without positions: the states say in which order tokens came."""
    size = c.head_dim
    q, k, v = (
        b.heads(h, f"mixer.{name[0]}_proj", heads, size, site=f"attention.{name}")
        for name, heads in (
            ("query", c.num_attention_heads),
            ("key", c.num_key_value_heads),
            ("value", c.num_key_value_heads),
        )
    )
    a = b.attend(q, k, v, "mixer", dropout=c.attention_dropout)
    return b.linear(a, "mixer.o_proj", c.hidden_size, site="attention.update")


def mlp(
    b: Builder, c: Config, x: Value, module: str = "mixer", inner: int = 0, hidden: str | None = "mlp.hidden",
    site: str | None = "mlp.update",
) -> Value:  # fmt: skip
    h = b.linear(x, f"{module}.up_proj", inner or c.intermediate_size, c.mlp_bias)
    h = b.activate(h, c.mlp_hidden_act, hidden, f"{module}.act_fn")
    return b.linear(h, f"{module}.down_proj", c.hidden_size, c.mlp_bias, site=site)


def experts(b: Builder, c: Config, x: Value) -> Value:
    """Experts without gates, which may read less than the stream, beside one that all tokens go to."""
    chosen, names = c.num_experts_per_tok, [f"mixer.experts.{index}" for index in range(c.num_experts)]
    common = mlp(b, c, x, "mixer.shared_experts", c.moe_shared_expert_intermediate_size, None, None)
    scores = b.linear(x, "mixer.gate", c.num_experts, site="mlp.router")
    shares = b.route(
        scores, "mixer.gate", chosen, c.norm_topk_prob, how="sigmoid", correction="mixer.gate.e_score_correction_bias",
        groups=c.n_group or 1, kept_groups=c.topk_group or 1, group_best=2, scale=c.routed_scaling_factor, floor=1e-20,
    )  # fmt: skip
    latent = c.moe_latent_size
    h = b.linear(x, "mixer.fc1_latent_proj", latent, c.mlp_bias) if latent else x
    h = b.expert_gate(h, shares, [(f"{name}.up_proj",) for name in names], chosen, c.moe_intermediate_size, c.mlp_hidden_act)
    down = [f"{name}.down_proj" for name in names]
    update = b.expert_linear(h, shares, down, chosen, latent or c.hidden_size, site=None)
    if latent:
        update = b.linear(update, "mixer.fc2_latent_proj", c.hidden_size, c.mlp_bias)
    return b.add(common, update, "mlp.update", "mixer", of=("the shared expert", "the chosen experts"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.layer_norm_epsilon
    parts = {MLP: mlp, EXPERTS: experts, ATTENTION: attention}
    x = b.embed(f"{base}embeddings")
    for layer, kind in enumerate(c.layer_types or ()):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "norm", eps, site="mlp.input" if kind in (MLP, EXPERTS) else "attention.input")
            update = parts[kind](b, c, h) if kind != STATE else state_space.mixer(b, c.state_space, h, "mixer")
            x = b.add(x, update, site="residual")
    x = b.norm(x, f"{base}norm_f", eps, site="final")
    return b.build_with_head(x, head)
