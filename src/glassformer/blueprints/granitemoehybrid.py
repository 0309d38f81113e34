"""Granite 4 (https://www.ibm.com/granite): layers with Mamba-2's states beside attention, with an MLP for all tokens and
perhaps experts; Granite's multipliers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import granite, granitemoe, llama, routed, state_space
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import EXPERTS, SIZE
from glassformer.blueprints.state_space import ATTENTION, STATE
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief


@dataclass(kw_only=True)
class Config(granitemoe.Config, state_space.HybridConfig):
    model_type = "granitemoehybrid"
    title = "Granite 4"
    bounds = {
        **granite.Config.bounds, **state_space.Config.state_bounds, "shared_intermediate_size": SIZE,
        **dict.fromkeys(("num_experts", "num_experts_per_tok"), EXPERTS._replace(least=0)),
    }  # fmt: skip

    layer_types: list[str] | None = None
    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None  # "rope": attention has it

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        kinds = raw.get("layer_types")
        if isinstance(kinds, list):
            raw["layer_types"] = [
                state_space.FORMER_KINDS.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds
            ]
        elif kinds is None and isinstance(layers := raw.get("num_hidden_layers"), int):
            raw["layer_types"] = [STATE] * layers
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_types is None:
            object.__setattr__(self, "layer_types", [STATE] * self.num_hidden_layers)
        kinds = self.layer_types or []
        if len(kinds) != self.num_hidden_layers or not {*kinds} <= {STATE, ATTENTION}:
            raise ConfigError(
                f"config field 'layer_types' must name one of {STATE}, {ATTENTION} for each of the "
                f"{self.num_hidden_layers} layers, not {brief(kinds)}."
            )
        if self.position_embedding_type not in (None, "rope", "nope"):
            raise ConfigError(
                f"config field 'position_embedding_type' is {brief(self.position_embedding_type)}; it must be 'rope', or "
                "'nope' for attention without positions."
            )
        if self.num_experts and not self.num_experts_per_tok:
            raise ConfigError(
                f"config field 'num_experts_per_tok' is 0, but there are {self.num_experts} experts ('num_local_experts')."
            )
        self.check_states(self.mamba_expand * self.hidden_size)

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_hidden_layers)) if self.num_experts else ()

    def has_rope(self, layer: int) -> bool:
        return self.position_embedding_type == "rope"

    @property
    def ropes(self) -> Any:
        return super().ropes if self.has_rope(0) else {}


FAMILY = replace(
    granitemoe.FAMILY,
    name="GraniteMoeHybrid",
    modules={
        **granitemoe.FAMILY.modules,
        "layers.*": "DecoderLayer block_sparse_moe input_layernorm post_attention_layernorm shared_mlp self_attn mamba",
        "mamba": "MambaLayer conv1d in_proj norm out_proj",
        "shared_mlp": "MLP activation input_linear output_linear",
    },
)


def mlp(b: Builder, c: Config, x: Value) -> Value:
    """An MLP for all tokens, and what experts add to it, if there are any."""
    scale, whole = c.residual_multiplier, not c.num_experts
    h = b.linear(x, "shared_mlp.input_linear", 2 * c.shared_intermediate_size)
    site = "mlp.hidden" if whole else None
    h = b.fused_gate(h, "shared_mlp", c.shared_intermediate_size, c.hidden_act, site, name="activation")
    common = b.linear(h, "shared_mlp.output_linear", c.hidden_size, site="mlp.update" if whole else None, scale=scale)
    if whole:
        return common
    update = routed.routed_mlp(b, c, x, "block_sparse_moe", "router.layer", scale=scale, scaled=True, site=None)
    return b.add(common, update, "mlp.update", of=("the shared expert", "the chosen experts"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps, scale = Builder(c), FAMILY.prefix(head), c.rms_norm_eps, c.residual_multiplier
    x = b.embed(f"{base}embed_tokens", scale=c.embedding_multiplier)
    for layer, kind in enumerate(c.layer_types or ()):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input")
            if kind == STATE:
                update = state_space.mixer(b, c.state_space, h, "mamba", scale)
            else:
                a = llama.attention(b, c, h, llama.rotated_where_it_has_rope, scale=c.attention_multiplier)
                update = b.linear(a, "self_attn.o_proj", c.hidden_size, c.output_bias, site="attention.update", scale=scale)
            x = b.add(x, update, site="middle")
            h = b.norm(x, "post_attention_layernorm", eps, site="mlp.input")
            x = b.add(x, mlp(b, c, h), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final")
    return b.build_with_head(x, head, scale=1 / c.logits_scaling)
