"""Phi-1 and Phi-2 (https://arxiv.org/abs/2309.05463): attention and MLP side by side, RoPE on a part of each head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "phi"
    title = "Phi-1 and Phi-2"
    default_share = 0.5
    default_fields = {
        "vocab_size": 51200, "hidden_size": 2048, "num_hidden_layers": 24, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    aliases = {"layer_norm_eps": "rms_norm_eps"}
    fixed_fields = {"attention_bias": True, "mlp_bias": True}

    intermediate_size: int = 8192
    hidden_act: str = "gelu_new"
    rms_norm_eps: float = 1e-5  # of its layer norms
    attention_bias: bool = True
    mlp_bias: bool = True
    qk_layernorm: bool = False
    resid_pdrop: float = 0.0
    embd_pdrop: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_joined_heads()


FAMILY = replace(
    llama.FAMILY,
    name="Phi",
    heads=("causal", "sequence", "token"),
    modules={
        "": "Model embed_tokens layers rotary_emb embed_dropout final_layernorm",
        "layers.*": "DecoderLayer self_attn mlp input_layernorm resid_dropout",
        "self_attn": "Attention q_proj k_proj v_proj dense q_layernorm k_layernorm",
        "mlp": "MLP activation_fn",
    },
)


def normed(b: Builder, c: Config, query: Value, key: Value) -> tuple[Value, Value]:
    if c.qk_layernorm:
        query = b.norm(query, "self_attn.q_layernorm", c.rms_norm_eps, how="layer")
        key = b.norm(key, "self_attn.k_layernorm", c.rms_norm_eps, how="layer")
    return llama.rotated(b, c, query, key)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.dropout(b.embed(f"{base}embed_tokens"), c.embd_pdrop, f"{base}embed_dropout")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, how="layer")
            a = llama.attention(b, c, b.identity(h, "attention.input"), normed)
            a = b.linear(a, "self_attn.dense", c.hidden_size, bias=True, site="attention.update")
            x = b.add(x, b.dropout(a, c.resid_pdrop, "resid_dropout"), site="middle")
            h = b.linear(b.identity(h, "mlp.input"), "mlp.fc1", c.intermediate_size, bias=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.activation_fn")
            h = b.linear(h, "mlp.fc2", c.hidden_size, bias=True, site="mlp.update")
            x = b.add(x, b.dropout(h, c.resid_pdrop, "resid_dropout"), site="residual")
    x = b.norm(x, f"{base}final_layernorm", eps, site="final", how="layer")
    return b.build_with_head(x, head, token_head="score", bias=True)
