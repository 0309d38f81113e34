"""Gemma 2 (https://arxiv.org/abs/2408.00118): norms before and after, every other layer with a window, soft caps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import layer_types, llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
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


def blueprint(c: Config, head: Head = "causal", prepare_query_key: llama.PrepareQueryKey = llama.rotated) -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps, bias = c.rms_norm_eps, c.attention_bias
    x = b.embed(f"{base}embed_tokens", scale=c.hidden_size**0.5)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input", offset=1)
            a = llama.attention(b, c, h, prepare_query_key, scale=c.scale, softcap=c.attn_logit_softcapping)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, bias)
            x = b.add(x, b.norm(a, "post_attention_layernorm", eps, site="attention.update", offset=1), site="middle")
            h = b.norm(x, "pre_feedforward_layernorm", eps, site="mlp.input", offset=1)
            h = b.gate(h, "mlp.gate_proj", "mlp.up_proj", c.intermediate_size, c.hidden_act)
            h = b.linear(h, "mlp.down_proj", c.hidden_size)
            x = b.add(x, b.norm(h, "post_feedforward_layernorm", eps, site="mlp.update", offset=1), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", offset=1)
    return b.build_with_head(x, head, token_head="score", softcap=c.final_logit_softcapping)
