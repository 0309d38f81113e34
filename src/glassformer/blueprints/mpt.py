"""MPT (https://www.databricks.com/blog/mpt-7b): pre-norm without biases, one fused projection, and ALiBi for positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head
from glassformer.blueprints.config import Config as BaseConfig
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief
from glassformer.ops.positions import alibi_slopes

FIXED: Mapping[str, Any] = {  # what attention may only be
    "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False, "alibi": True,
    "attn_uses_sequence_id": False,
}  # fmt: skip
GREATEST: Mapping[str, float] = {  # numbers, from 0 on
    "attn_pdrop": 1.0, "softmax_scale": 1e4, "alibi_bias_max": 1e4, "clip_qkv": 1e4,
}  # fmt: skip
ATTENTION: Mapping[str, Any] = {
    **FIXED, "attn_impl": "torch", "attn_pdrop": 0, "softmax_scale": None, "alibi_bias_max": 8, "clip_qkv": None,
}  # fmt: skip


@dataclass(kw_only=True)
class Config(BaseConfig):
    model_type = "mpt"
    title = "MPT"
    default_fields = {"vocab_size": 50368}
    aliases = {
        "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
    }  # fmt: skip
    fixed_fields = {"no_bias": True, "logit_scale": None, "expansion_ratio": 4}

    hidden_size: int = 2048
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    layer_norm_epsilon: float = 1e-5
    attn_config: dict[str, Any] = field(default_factory=dict)
    tie_word_embeddings: bool = True
    use_cache: bool = False

    def __post_init__(self) -> None:
        self.attn_config = {**ATTENTION, **self.attn_config}
        super().__post_init__()
        self.check_heads_divide()
        for name, allowed in FIXED.items():
            if (value := self.attn_config[name]) != allowed:
                raise ConfigError(
                    f"config field 'attn_config' has {name}={brief(value)}; in an mpt model it is {allowed!r} here."
                )

        for name, greatest in GREATEST.items():
            value = self.attn_config[name]
            a_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= greatest
            if not a_number and not (value is None and ATTENTION[name] is None):
                raise ConfigError(
                    f"config field 'attn_config' has {name}={brief(value)}; it must be a number from 0 to {greatest:g}."
                )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def scale(self) -> float:
        return float(self.attn_config["softmax_scale"] or self.head_dim**-0.5)

    @property
    def clip(self) -> float | None:
        """A limit of the numbers of queries, keys and values."""
        return self.attn_config["clip_qkv"] or None

    @property
    def slopes(self) -> tuple[float, ...]:
        return alibi_slopes(self.num_attention_heads, self.attn_config["alibi_bias_max"])

    @property
    def rate(self) -> float:
        """Of all dropouts."""
        return float(self.attn_config["attn_pdrop"])


FAMILY = Family(
    name="Mpt",
    base="transformer",
    heads=("causal", "sequence", "token", "question"),
    modules={
        "": "Model wte blocks norm_f",
        "blocks.*": "Block norm_1 attn norm_2 ffn resid_attn_dropout",
        "attn": "Attention Wqkv out_proj",
        "ffn": "MLP up_proj act down_proj",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps, width = Builder(c), FAMILY.prefix(head), c.layer_norm_epsilon, c.hidden_size
    heads, size = c.num_attention_heads, c.head_dim
    x = b.embed(f"{base}wte")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}blocks"):
            h = b.norm(x, "norm_1", eps, site="attention.input", how="layer", bias=False)
            fused = b.linear(h, "attn.Wqkv", 3 * width)
            q, k, v = (
                b.clip(b.fused_heads(fused, "attn", part * heads, heads, size, site=None if c.clip else site), c.clip, site)
                for part, site in enumerate(("attention.query", "attention.key", "attention.value"))
            )
            a = b.attend(q, k, v, "attn", scale=c.scale, slopes=c.slopes, dropout=c.rate)
            a = b.linear(a, "attn.out_proj", width, site="attention.update")
            x = b.add(x, b.dropout(a, c.rate, "resid_attn_dropout"), site="middle")
            h = b.norm(x, "norm_2", eps, site="mlp.input", how="layer", bias=False)
            h = b.activate(b.linear(h, "ffn.up_proj", 4 * width), "gelu", "mlp.hidden", "ffn.act")
            h = b.linear(h, "ffn.down_proj", width, site="mlp.update", summed=True)
            x = b.add(x, b.dropout(h, c.rate), site="residual")
    return b.build_with_head(b.norm(x, f"{base}norm_f", eps, site="final", how="layer", bias=False), head)
