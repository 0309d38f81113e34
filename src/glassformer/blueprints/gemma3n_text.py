"""Gemma 3n, text (https://ai.google.dev/gemma/docs/gemma-3n): Gemma 3's attention, with vectors of each token beside the
stream and keys and values that the last blocks share; low-rank residuals (Laurel, https://arxiv.org/abs/2411.07501); few
neurons at a time (https://arxiv.org/abs/2506.06644); and several streams (AltUp, https://arxiv.org/abs/2301.13310).

A block predicts all streams from all of them, computes one, the active one, and corrects the others by what came of it.
Sites are those of the active stream: `residual` is what it is when it leaves the block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import gemma4_text, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, SIZE, Bounds
from glassformer.blueprints.gemma import SPECIAL_TOKENS
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

FLOOR = 1e-5  # of the mean square of a stream that gets the length of the first
SPARSE_LAYERS, SPARSITY = 10, 0.95  # where a file does not say it


@dataclass(kw_only=True)
class Config(gemma4_text.SharedKeysConfig):
    model_type = "gemma3n_text"
    title = "Gemma 3n (text)"
    default_period = 5
    default_fields = {
        "vocab_size": 262400, "hidden_size": 2048, "num_hidden_layers": 35, "num_attention_heads": 8,
        "num_key_value_heads": 2, **SPECIAL_TOKENS,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False, "altup_correct_scale": True}
    bounds = {
        **BOUNDS, **dict.fromkeys(("vocab_size_per_layer_input", "hidden_size_per_layer_input", "laurel_rank"), SIZE),
        "num_kv_shared_layers": Bounds(), "altup_num_inputs": Bounds(2, held_by="tensors"), "altup_active_idx": Bounds(),
        "activation_sparsity_pattern": Bounds(0, 1 - 1e-6),
    }  # fmt: skip

    max_position_embeddings: int = 32768
    intermediate_size: int | list[int] = 16384  # type: ignore[assignment]  # of all blocks, or of each
    num_kv_shared_layers: int = 15
    final_logit_softcapping: float | None = 30.0
    altup_num_inputs: int = 4  # how many streams there are
    altup_active_idx: int = 0  # the one that blocks compute
    laurel_rank: int = 64
    activation_sparsity_pattern: list[float] | None = None  # of each block: the share of neurons that are shut

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.num_hidden_layers
        if self.activation_sparsity_pattern is None:
            sparse = SPARSE_LAYERS if layers > SPARSE_LAYERS else 0
            pattern = [SPARSITY] * sparse + [0.0] * (layers - sparse)
            object.__setattr__(self, "activation_sparsity_pattern", pattern)
        if isinstance(self.intermediate_size, int):
            object.__setattr__(self, "intermediate_size", [self.intermediate_size] * layers)
        for name in ("intermediate_size", "activation_sparsity_pattern"):
            if len(value := getattr(self, name)) != layers:
                raise ConfigError(
                    f"config field {name!r} is {brief(value)}; it must have a number for each of the {layers} layers."
                )
        if self.altup_active_idx >= self.altup_num_inputs:
            raise ConfigError(
                f"config field 'altup_active_idx' is {self.altup_active_idx}; it must be one of the "
                f"{self.altup_num_inputs} streams, from 0 on."
            )

    def inner(self, layer: int) -> int:
        sizes = self.intermediate_size
        return sizes[layer] if isinstance(sizes, list) else sizes

    def sparsity(self, layer: int) -> float:
        return (self.activation_sparsity_pattern or [])[layer]


FAMILY = replace(
    llama.FAMILY,
    name="Gemma3n",
    heads=("causal",),
    class_suffixes={"Model": "TextModel"},
    modules={
        **llama.FAMILY.modules,
        "layers.*": "TextDecoderLayer self_attn mlp",
        "self_attn": "TextAttention q_proj k_proj v_proj o_proj",
        "mlp": "TextMLP",
        "altup": "TextAltUp",
        "laurel": "TextLaurelBlock",
    },
)


def mlp(b: Builder, c: Config, x: Value) -> Value:
    """A gated MLP, in some blocks with few gates that are open."""
    inner, sparsity = c.inner(b.layer), c.sparsity(b.layer)
    if sparsity:
        gate = b.keep_top(b.linear(x, "mlp.gate_proj", inner), sparsity, "mlp")
        h = b.gated(gate, b.linear(x, "mlp.up_proj", inner), c.hidden_act, "mlp", site="mlp.hidden")
    else:
        h = b.gate(x, "mlp.gate_proj", "mlp.up_proj", inner, c.hidden_act)
    return b.linear(h, "mlp.down_proj", c.hidden_size)


def laurel(b: Builder, c: Config, x: Value) -> Value:
    """A vector and a low-rank map of it."""
    low = b.linear(b.linear(x, "laurel.linear_left", c.laurel_rank), "laurel.linear_right", c.hidden_size)
    low = b.norm(low, "laurel.post_laurel_norm", c.rms_norm_eps)
    return b.add(x, low, module="laurel", of=("norm", "low-rank part"))


def modalities(b: Builder, c: Config, x: Value) -> Value:
    """A few numbers of a stream, by which factors are made."""
    h = b.norm(x, "altup.router_norm", c.rms_norm_eps)
    return b.activate(b.linear(h, "altup.modality_router", c.altup_num_inputs, scale=1 / c.hidden_size), "tanh")


def several(b: Builder, c: Config, base: str, x: Value) -> Value:
    """Embedded tokens as streams: the first is themselves, the others maps of them that are as long."""
    maps = (b.linear(x, f"{base}altup_projections.{n}", c.hidden_size) for n in range(c.altup_num_inputs - 1))
    return b.join([x, *(b.rescale(other, x, FLOOR, base.rstrip(".")) for other in maps)], base)


def one(b: Builder, c: Config, base: str, x: Value) -> Value:
    """The mean of all streams: of the first, and of maps of the others that are as long."""
    size, count, top = c.hidden_size, c.altup_num_inputs, base.rstrip(".")
    total = first = b.stream(x, 0, size, top)
    for n in range(1, count):
        other = b.linear(b.stream(x, n, size, top), f"{base}altup_unembed_projections.{n - 1}", size)
        other = b.rescale(other, first, FLOOR, top)
        total = b.add(total, other, module=top, of=("streams", "stream"), scale=1 / count if n == count - 1 else 1.0)
    return total


def corrected(b: Builder, c: Config, predicted: Value, active: Value, x: Value, inputs: Value) -> Value:
    """All streams, by what the active one has become; `inputs`: vectors of tokens, for every block."""
    size, layer_size = c.hidden_size, c.hidden_size_per_layer_input
    factors = b.linear(modalities(b, c, x), "altup.correction_coefs", c.altup_num_inputs)
    news = b.add(x, active, of=("computed", "predicted"), factor=-1.0)
    streams = b.mix(news, factors, predicted, size, offset=1.0)
    parts = [b.stream(streams, n, size) for n in range(c.altup_num_inputs)]
    h = b.linear(b.scales(parts[c.altup_active_idx], "altup.correct_output_scale"), "per_layer_input_gate", layer_size)
    h = b.linear(b.gated(h, inputs, c.hidden_act, column=b.layer * layer_size), "per_layer_projection", size)
    h = b.norm(h, "post_per_layer_input_norm", c.rms_norm_eps)
    parts = [parts[0], *(b.add(part, h, of=("stream", "layer input")) for part in parts[1:])]
    parts[c.altup_active_idx] = b.identity(parts[c.altup_active_idx], "residual")
    return b.join(parts, "")


def block(b: Builder, c: Config, x: Value, attend: Any, inputs: Value) -> Value:
    eps, size = c.rms_norm_eps, c.hidden_size
    factors = b.linear(
        modalities(b, c, b.stream(x, c.altup_active_idx, size)), "altup.prediction_coefs", c.altup_num_inputs**2
    )
    predicted = b.mix(x, factors, x, size)
    active = b.stream(predicted, c.altup_active_idx, size)
    h = b.norm(active, "input_layernorm", eps, site="attention.input")
    low = laurel(b, c, h)
    a = b.linear(attend(h), "self_attn.o_proj", size, c.attention_bias)
    y = b.add(active, b.norm(a, "post_attention_layernorm", eps, site="attention.update"))
    y = b.add(y, low, site="middle", scale=2**-0.5)
    h = mlp(b, c, b.norm(y, "pre_feedforward_layernorm", eps, site="mlp.input"))
    y = b.add(y, b.norm(h, "post_feedforward_layernorm", eps, site="mlp.update"))
    return corrected(b, c, predicted, active, y, inputs)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    x = b.embed(f"{base}embed_tokens", site=None, scale=c.hidden_size**0.5)
    inputs = gemma4_text.layer_inputs(b, c, base, x)
    assert inputs is not None
    x = several(b, c, base, b.identity(x, "embedding"))
    made: dict[int, tuple[Value, Value]] = {}
    sources: Sequence[int] = [c.source(layer) for layer in range(c.num_hidden_layers)]
    for layer, source in enumerate(sources):
        with b.block(layer, f"{base}layers"):
            shared = source == layer and sources.count(source) > 1

            def attend(h: Value, source: int = source, shared: bool = shared) -> Value:
                return gemma4_text.attention(b, c, h, made, source, shared)

            x = block(b, c, x, attend, inputs)
    x = b.norm(one(b, c, base, x), f"{base}norm", c.rms_norm_eps, site="final")
    return b.build_with_head(x, head, softcap=c.final_logit_softcapping)
