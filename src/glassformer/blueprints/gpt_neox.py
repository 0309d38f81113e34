"""GPT-NeoX (https://arxiv.org/abs/2204.06745) and Pythia: attention and MLP side by side, RoPE on a part of each head.

Query, key and value of each head lie together in one projection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head
from glassformer.blueprints.config import RotaryConfig


@dataclass(kw_only=True)
class Config(RotaryConfig):
    model_type = "gpt_neox"
    title = "GPT-NeoX and Pythia"
    default_share = 0.25
    default_fields = {"vocab_size": 50432, "bos_token_id": 0, "eos_token_id": 2}

    hidden_size: int = 6144
    num_hidden_layers: int = 44
    intermediate_size: int = 24576
    num_attention_heads: int = 64
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    attention_bias: bool = True
    use_parallel_residual: bool = True
    hidden_dropout: float = 0.0
    classifier_dropout: float = 0.1

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        former = {"partial_rotary_factor": raw.pop("rotary_pct", None), "rope_theta": raw.pop("rotary_emb_base", None)}
        return super().prepare({**{name: value for name, value in former.items() if value is not None}, **raw})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_heads_divide()
        self.rope.check_head_size(self.head_dim)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def head_dropout(self) -> float:
        return self.classifier_dropout


FAMILY = Family(
    name="GPTNeoX",
    base="gpt_neox",
    heads=("causal", "sequence", "token", "question"),
    modules={
        "": "Model embed_in emb_dropout layers final_layer_norm rotary_emb",
        "layers.*": ("Layer input_layernorm post_attention_layernorm post_attention_dropout post_mlp_dropout attention mlp"),
        "attention": "Attention dense query_key_value",
        "mlp": "MLP",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    heads, size, bias, eps = c.num_attention_heads, c.head_dim, c.attention_bias, c.layer_norm_eps
    x = b.dropout(b.embed(f"{base}embed_in"), c.hidden_dropout, f"{base}emb_dropout")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input", how="layer")
            h = b.linear(h, "attention.query_key_value", 3 * c.hidden_size, bias)
            q, k = (b.fused_heads(h, "attention", part, heads, size, step=3) for part in (0, 1))
            q = b.rotate(q, "attention", c.rope, site="attention.query")
            k = b.rotate(k, "attention", c.rope, site="attention.key")
            v = b.fused_heads(h, "attention", 2, heads, size, site="attention.value", step=3)
            a = b.attend(q, k, v, "attention", dropout=c.attention_dropout)
            a = b.linear(a, "attention.dense", c.hidden_size, bias, site="attention.update")
            middle = b.add(x, b.dropout(a, c.hidden_dropout, "post_attention_dropout"), site="middle")
            h = x if c.use_parallel_residual else middle
            h = b.norm(h, "post_attention_layernorm", eps, site="mlp.input", how="layer")
            h = b.linear(h, "mlp.dense_h_to_4h", c.intermediate_size, bias=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.dense_4h_to_h", c.hidden_size, True, site="mlp.update")
            x = b.add(middle, b.dropout(h, c.hidden_dropout, "post_mlp_dropout"), site="residual")
    return b.build_with_head(b.norm(x, f"{base}final_layer_norm", eps, site="final", how="layer"), head)
