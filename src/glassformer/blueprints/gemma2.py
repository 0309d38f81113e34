"""Gemma 2 (https://arxiv.org/abs/2408.00118): norms before and after, every other layer with a window, soft caps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.gemma import SPECIAL_TOKENS


@dataclass(kw_only=True)
class Config(layer_types.Config):
    model_type = "gemma2"
    title = "Gemma 2"
    default_period = 2
    default_fields = {
        "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26, "intermediate_size": 9216,
        "num_attention_heads": 8, "num_key_value_heads": 4, **SPECIAL_TOKENS,
    }  # fmt: skip
    aliases = {"hidden_activation": "hidden_act"}
    fixed_fields = {"mlp_bias": False}

    hidden_act: str = "gelu_pytorch_tanh"
    head_dim: int = 256
    max_position_embeddings: int = 8192
    query_pre_attn_scalar: float = 256
    tie_word_embeddings: bool = True
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0

    @property
    def scale(self) -> float:
        return float(self.query_pre_attn_scalar**-0.5)


FAMILY = replace(llama.FAMILY, name="Gemma2", heads=("causal", "sequence", "token"))


NORMS = (  # before and after attention, before and after the MLP
    "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip


def normed_both_ways(
    c: llama.Config, head: Head, norms: tuple[str, str, str, str] = NORMS, mlp: Callable[..., Value] = llama.gated_mlp,
    offset: float = 0.0, embedding_scale: float = 1.0, softcap: float | None = None,
    attention: Mapping[str, Any] = MappingProxyType({}),
) -> Blueprint:  # fmt: skip
    """Blocks that norm what attention and MLP read, and what they give; `attention`: its options."""
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    before_attention, after_attention, before_mlp, after_mlp = norms
    x = b.embed(f"{base}embed_tokens", scale=embedding_scale)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, before_attention, eps, site="attention.input", offset=offset)
            a = llama.attention(b, c, h, **attention)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.output_bias)
            x = b.add(x, b.norm(a, after_attention, eps, site="attention.update", offset=offset), site="middle")
            h = mlp(b, c, b.norm(x, before_mlp, eps, site="mlp.input", offset=offset), site=None)
            x = b.add(x, b.norm(h, after_mlp, eps, site="mlp.update", offset=offset), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", offset=offset)
    return b.build_with_head(x, head, token_head="score", softcap=softcap)


def blueprint(
    c: Config, head: Head = "causal", prepare_query_key: llama.PrepareQueryKey = llama.rotated, **attention: Any
) -> Blueprint:
    """`attention`: more of its options."""
    own = {"prepare_query_key": prepare_query_key, "scale": c.scale, "softcap": c.attn_logit_softcapping}
    return normed_both_ways(
        c, head, offset=1, embedding_scale=c.hidden_size**0.5, softcap=c.final_logit_softcapping,
        attention={**own, **attention},
    )  # fmt: skip
