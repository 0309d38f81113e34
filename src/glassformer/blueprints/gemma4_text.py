"""Gemma 4, text (https://ai.google.dev/gemma/docs/core): Gemma 3's shape with vectors of each token beside the stream in
every block, keys and values that the last blocks share, larger heads where a block sees everything, and a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, SIZE, Bounds
from glassformer.blueprints.gemma import SPECIAL_TOKENS
from glassformer.blueprints.layer_types import FULL, SLIDING
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0},
}


@dataclass(kw_only=True)
class SharedKeysConfig(layer_types.TwoRopesConfig):
    """Vectors of each token beside the stream, and last blocks that have no keys and values of their own."""

    default_theta = 1_000_000.0
    local_theta = 10_000.0
    aliases = {"hidden_activation": "hidden_act"}
    attention_k_eq_v = False  # whether blocks that see everything take values from the keys' projection

    hidden_act: str = "gelu_pytorch_tanh"
    head_dim: int = 256
    sliding_window: int | None = 512
    tie_word_embeddings: bool = True
    vocab_size_per_layer_input: int = 262144
    hidden_size_per_layer_input: int = 256  # of the vectors beside the stream
    num_kv_shared_layers: int = 0  # how many of the last blocks have no keys and values of their own

    def __post_init__(self) -> None:
        super().__post_init__()
        own = (self.layer_types or [])[: self.first_shared]
        if self.num_kv_shared_layers and not set(self.layer_types or []) <= {*own}:
            raise ConfigError(
                f"config field 'num_kv_shared_layers' is {self.num_kv_shared_layers}; before them there must be a layer of "
                "each of their kinds, whose keys and values they share."
            )

    @property
    def first_shared(self) -> int:
        """The first block without keys and values of its own."""
        return max(0, self.num_hidden_layers - self.num_kv_shared_layers)

    def source(self, layer: int) -> int:
        """The block whose keys and values a block attends to: the last one of its kind that has its own."""
        if layer < self.first_shared:
            return layer
        kinds = self.layer_types or []
        return max(n for n, kind in enumerate(kinds[: self.first_shared]) if kind == kinds[layer])

    def head_size(self, layer: int) -> int:
        return self.head_dim

    def key_heads(self, layer: int) -> int:
        return self.num_key_value_heads


@dataclass(kw_only=True)
class Config(SharedKeysConfig):
    model_type = "gemma4_text"
    title = "Gemma 4 (text)"
    default_period = 6
    default_fields = {
        "vocab_size": 262144, "hidden_size": 2304, "num_hidden_layers": 30, "intermediate_size": 9216,
        "num_attention_heads": 8, "num_key_value_heads": 4, **SPECIAL_TOKENS,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False}
    aliases = {**SharedKeysConfig.aliases, "top_k_experts": "num_experts_per_tok"}
    bounds = {
        **BOUNDS, "global_head_dim": SIZE, "vocab_size_per_layer_input": SIZE, "num_global_key_value_heads": SIZE,
        "num_kv_shared_layers": Bounds(), "hidden_size_per_layer_input": Bounds(0, held_by="dimension"),
    }  # fmt: skip

    max_position_embeddings: int = 131072
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: str | None = None  # "vision": of images' tokens, so that texts stay causal
    attention_k_eq_v: bool = False  # whether blocks that see everything take values from the keys' projection
    global_head_dim: int = 512  # of blocks that see everything
    num_global_key_value_heads: int | None = None  # where values are keys; None: as many as elsewhere
    use_double_wide_mlp: bool = False  # whether those have twice the neurons
    enable_moe_block: bool = False  # whether experts stand beside each MLP
    num_experts: int | None = None
    num_experts_per_tok: int | None = None
    moe_intermediate_size: int | None = None

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = {**raw, **_of_full_layers(raw)}
        if not raw.get("rope_parameters"):
            raw["rope_parameters"] = ROPES
        prepared = super().prepare(raw)
        if isinstance(kinds := prepared.get("layer_types"), list) and kinds:
            prepared["layer_types"] = [*kinds[:-1], FULL]  # the last one always sees everything
        return prepared

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.use_bidirectional_attention not in (None, "vision"):
            raise ConfigError(
                f"config field 'use_bidirectional_attention' is {brief(self.use_bidirectional_attention)}; a decoder that "
                "looks ahead is not supported. For vectors of texts take an encoder, such as minilm."
            )
        if self.enable_moe_block:
            self._check_experts()
        for name in ("global_head_dim", "num_attention_heads"):
            divisor = 2 if name == "global_head_dim" else self.key_heads(self.num_hidden_layers - 1)
            if getattr(self, name) % divisor:
                raise ConfigError(f"config field {name!r} is {getattr(self, name)}; it must be a multiple of {divisor}.")
        if self.hidden_size_per_layer_input and self.vocab_size_per_layer_input < self.vocab_size:
            raise ConfigError(
                f"config field 'vocab_size_per_layer_input' is {self.vocab_size_per_layer_input}; every block reads a "
                f"vector of each of the {self.vocab_size} tokens."
            )
        self.rope.check_head_size(self.global_head_dim)

    def head_size(self, layer: int) -> int:
        return self.head_dim if self.is_local(layer) else self.global_head_dim

    def key_heads(self, layer: int) -> int:
        fewer = self.attention_k_eq_v and not self.is_local(layer) and self.num_global_key_value_heads
        return fewer or self.num_key_value_heads

    def _check_experts(self) -> None:
        for name in ("num_experts", "num_experts_per_tok", "moe_intermediate_size"):
            if getattr(self, name) is None:
                raise ConfigError(f"config field {self.own_name(name)!r} is missing, in a model with experts.")
        if (self.num_experts_per_tok or 0) > (self.num_experts or 0):
            raise ConfigError(
                f"config field 'top_k_experts' is {self.num_experts_per_tok}, but there are {self.num_experts} experts."
            )

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_hidden_layers)) if self.enable_moe_block else ()

    def inner(self, layer: int) -> int:
        return self.intermediate_size * (2 if self.use_double_wide_mlp and layer >= self.first_shared > 0 else 1)

    def rotary_head_size(self, name: str) -> int:
        return self.global_head_dim if name == "rotary_emb" else self.head_dim


def _of_full_layers(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says layer by layer, as two fields: all layers that see everything are alike."""
    by_layer = raw.get("per_layer_config")
    if by_layer is None:
        return {}
    if not isinstance(by_layer, Mapping):
        raise ConfigError(f"config field 'per_layer_config' is {brief(by_layer)}; it must be an object.")
    found = [dict(changes) if isinstance(changes, Mapping) else {"": changes} for changes in by_layer.values()]
    known = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
    if any(changes != found[0] or not changes.keys() <= known.keys() for changes in found):
        raise ConfigError(
            f"config field 'per_layer_config' is {brief(by_layer)}; all layers that see everything must have the same "
            "head_dim and num_key_value_heads, and no other field."
        )
    changes = found[0] if found else {}
    return {theirs: changes.get(name, raw.get(name) if name == "head_dim" else None) for name, theirs in known.items()}


FAMILY = replace(
    llama.FAMILY,
    name="Gemma4",
    heads=("causal",),
    class_suffixes={"Model": "TextModel"},
    modules={**llama.FAMILY.modules, "router": "TextRouter", "experts.*": "MLP gate_proj up_proj down_proj"},
    stacked_experts="stacked",
)


def queries(b: Builder, c: SharedKeysConfig, h: Value) -> Value:
    query = b.heads(h, "self_attn.q_proj", c.num_attention_heads, c.head_size(b.layer), c.attention_bias)
    query = b.norm(query, "self_attn.q_norm", c.rms_norm_eps)
    return b.rotate(query, "self_attn", c.rope_of(b.layer), site="attention.query")


def keys_and_values(b: Builder, c: SharedKeysConfig, h: Value) -> tuple[Value, Value]:
    layer, groups, eps = b.layer, c.key_heads(b.layer), c.rms_norm_eps
    projected = b.heads(h, "self_attn.k_proj", groups, c.head_size(layer), c.attention_bias)
    value = projected
    if not c.attention_k_eq_v or c.is_local(layer):
        value = b.heads(h, "self_attn.v_proj", groups, c.head_size(layer), c.attention_bias)
    key = b.rotate(b.norm(projected, "self_attn.k_norm", eps), "self_attn", c.rope_of(layer), site="attention.key")
    return key, b.norm(value, "self_attn.v_norm", eps, site="attention.value", weight=False)


def attention(
    b: Builder, c: SharedKeysConfig, h: Value, made: dict[int, tuple[Value, Value]], source: int, shared: bool
) -> Value:
    """What a block's heads give, joined. `made`: keys and values by block; `source`: the block whose they are."""
    query, own = queries(b, c, h), source == b.layer
    if own:
        made[source] = keys_and_values(b, c, h)
    return b.attend(
        query, *made[source], "self_attn", window=c.window(b.layer), scale=1.0, dropout=c.attention_dropout,
        shares=None if own else source, shared=shared,
    )  # fmt: skip


def mlp(b: Builder, c: Config, x: Value) -> Value:
    """A block's MLP, and beside it, where there are any, experts, which read a norm of their own."""
    h = b.norm(x, "pre_feedforward_layernorm", c.rms_norm_eps, site="mlp.input")
    site = None if c.enable_moe_block else "mlp.hidden"
    h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.inner(b.layer), c.hidden_act, site=site)
    h = b.linear(h, "mlp.down_proj", c.hidden_size)
    if not c.enable_moe_block:
        return h
    h = b.norm(h, "post_feedforward_layernorm_1", c.rms_norm_eps)
    update = b.norm(experts(b, c, x), "post_feedforward_layernorm_2", c.rms_norm_eps)
    return b.add(h, update, of=("the MLP", "the chosen experts"))


def experts(b: Builder, c: Config, x: Value) -> Value:
    """What the chosen experts make of the stream, each times its share and a number of its own."""
    count, chosen, inner = c.num_experts or 0, c.num_experts_per_tok or 0, c.moe_intermediate_size or 0
    h = b.scales(b.norm(x, "router.norm", c.rms_norm_eps, weight=False), "router.scale")
    scores = b.linear(h, "router.proj", count, scale=c.hidden_size**-0.5, site="mlp.router")
    shares = b.scales(b.route(scores, "router", chosen, normalized=True), "router.per_expert_scale")
    h = b.norm(x, "pre_feedforward_layernorm_2", c.rms_norm_eps)
    names = [f"experts.{index}." for index in range(count)]
    h = b.expert_gate(h, shares, [(f"{e}gate_proj", f"{e}up_proj") for e in names], chosen, inner, c.hidden_act)
    return b.expert_linear(h, shares, [f"{e}down_proj" for e in names], chosen, c.hidden_size, site=None)


def layer_inputs(b: Builder, c: SharedKeysConfig, base: str, x: Value) -> Value | None:
    """Vectors of each token for every block, side by side: of its id, and of the embedding."""
    size = c.hidden_size_per_layer_input
    if not size:
        return None
    width = c.num_hidden_layers * size
    with b.beside():
        looked_up = b.embed(
            f"{base}embed_tokens_per_layer", site=None, scale=size**0.5, size=width, rows=c.vocab_size_per_layer_input
        )
        made = b.linear(x, f"{base}per_layer_model_projection", width, scale=c.hidden_size**-0.5)
        made = b.norm(made, f"{base}per_layer_projection_norm", c.rms_norm_eps, groups=c.num_hidden_layers, shared=True)
        return b.add(made, looked_up, of=("projection", "token's vectors"), scale=2**-0.5)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens", site=None, scale=c.hidden_size**0.5)
    beside = layer_inputs(b, c, base, x)
    x = b.identity(x, "embedding")
    made: dict[int, tuple[Value, Value]] = {}
    sources = [c.source(layer) for layer in range(c.num_hidden_layers)]
    for layer, source in enumerate(sources):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input")
            a = attention(b, c, h, made, source, shared=source == layer and sources.count(source) > 1)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.attention_bias)
            x = b.add(x, b.norm(a, "post_attention_layernorm", eps, site="attention.update"), site="middle")
            x = b.add(x, b.norm(mlp(b, c, x), "post_feedforward_layernorm", eps, site="mlp.update"))
            if beside is not None:
                size = c.hidden_size_per_layer_input
                h = b.linear(x, "per_layer_input_gate", size)
                h = b.linear(b.gated(h, beside, c.hidden_act, column=layer * size), "per_layer_projection", c.hidden_size)
                x = b.add(x, b.norm(h, "post_per_layer_input_norm", eps))
            x = b.scale(x, "layer_scalar", site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final")
    return b.build_with_head(x, head, softcap=c.final_logit_softcapping)
