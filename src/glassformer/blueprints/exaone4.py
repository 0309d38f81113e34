"""EXAONE 4.0 (https://arxiv.org/abs/2507.11407): norms after attention and MLP, and on queries and keys.

Where some layers look back over a window, only those know positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import layer_types, llama, olmo2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import BOUNDS, Bounds


@dataclass(kw_only=True)
class Config(layer_types.Config):
    model_type = "exaone4"
    title = "EXAONE 4.0"
    default_period = 4
    default_fields = {
        "vocab_size": 102400, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    fixed_fields = {"attention_bias": False, "mlp_bias": False}
    bounds = {**BOUNDS, "sliding_window_pattern": Bounds()}  # 0: no layer looks through a window

    intermediate_size: int = 16384
    rms_norm_eps: float = 1e-5

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        layers, pattern = raw.get("num_hidden_layers"), raw.get("sliding_window_pattern")
        if raw.get("layer_types") is None and isinstance(layers, int):
            if raw.get("sliding_window", cls.sliding_window) is None:
                raw = {**raw, "layer_types": [layer_types.FULL] * layers}
            elif isinstance(pattern, str) and pattern:  # as in "LLLG": each layer's kind, and the last one sees everything
                local = [pattern[layer % len(pattern)] == "L" and layer < layers - 1 for layer in range(layers)]
                raw = {**raw, "layer_types": [layer_types.SLIDING if near else layer_types.FULL for near in local]}
        return super().prepare(raw)

    def has_rope(self, layer: int) -> bool:
        """Whether a layer's queries and keys know their positions."""
        return self.sliding_window is None or self.is_local(layer)


FAMILY = replace(llama.FAMILY, name="Exaone4", heads=("causal", "sequence", "token"))


def normed(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    query = b.norm(query, "self_attn.q_norm", c.rms_norm_eps)
    key = b.norm(key, "self_attn.k_norm", c.rms_norm_eps)
    return llama.rotated_where_it_has_rope(b, c, query, key)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return olmo2.blueprint(c, head, make_heads=llama.projected_heads, prepare_query_key=normed)
