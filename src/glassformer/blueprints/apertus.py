"""Apertus (https://arxiv.org/abs/2509.14233): Llama's shape, normed queries and keys, an ungated MLP of learned xIELUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, qwen3
from glassformer.blueprints.blueprint import Blueprint, Builder, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "apertus"
    title = "Apertus"
    default_theta = 12_000_000.0
    default_rope = {
        "rope_type": "llama3", "rope_theta": default_theta, "factor": 8.0, "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    }  # fmt: skip
    default_fields = {
        "vocab_size": 131072, "hidden_size": 4096, "num_hidden_layers": 32, "bos_token_id": 1, "eos_token_id": 2,
        "pad_token_id": 3,
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False, "hidden_act": "xielu", "qk_norm": True, "post_norm": False}

    intermediate_size: int = 14336
    hidden_act: str = "xielu"
    max_position_embeddings: int = 65536
    rms_norm_eps: float = 1e-5

    def check_activation(self, name: str) -> None:
        """It has one alone, with numbers of its own."""


FAMILY = replace(
    llama.FAMILY,
    name="Apertus",
    heads=("causal", "token"),
    modules={
        **llama.FAMILY.modules,
        "layers.*": "DecoderLayer self_attn mlp attention_layernorm feedforward_layernorm",
        "self_attn": "Attention q_proj k_proj v_proj o_proj q_norm k_norm",
        "mlp": "MLP up_proj down_proj act_fn",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            a = llama.attention(b, c, b.norm(x, "attention_layernorm", eps, site="attention.input"), qwen3.normed)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.attention_bias, site="attention.update")
            x = b.add(x, a, site="middle")
            h = b.linear(b.norm(x, "feedforward_layernorm", eps, site="mlp.input"), "mlp.up_proj", c.intermediate_size)
            h = b.learned_activate(h, "mlp.act_fn", site="mlp.hidden")
            x = b.add(x, b.linear(h, "mlp.down_proj", c.hidden_size, site="mlp.update"), site="residual")
    return b.build_with_head(b.norm(x, f"{base}norm", eps, site="final"), head, token_head="score")
