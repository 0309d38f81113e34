"""Command R (https://docs.cohere.com/docs/command-r), Aya: attention and MLP side by side, RoPE on neighbors."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.bounds import BOUNDS, Bounds


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "cohere"
    title = "Command R and Aya (Cohere)"
    default_theta = 500_000.0
    interleaved_rope = True
    default_fields = {
        "vocab_size": 256000, "hidden_size": 8192, "num_hidden_layers": 40, "num_attention_heads": 64, "bos_token_id": 5,
        "eos_token_id": 255001, "pad_token_id": 0,
    }  # fmt: skip
    aliases = {"layer_norm_eps": "rms_norm_eps"}
    fixed_fields = {"mlp_bias": False, "use_qk_norm": False}
    bounds = {**BOUNDS, "logit_scale": Bounds(0, 1e6)}

    intermediate_size: int = 22528
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-5  # of its layer norms
    tie_word_embeddings: bool = True
    logit_scale: float = 0.0625


FAMILY = replace(
    llama.FAMILY,
    name="Cohere",
    heads=("causal",),
    modules={**llama.FAMILY.modules, "input_layernorm": "LayerNorm", "norm": "LayerNorm"},
)


def blueprint(c: Config, head: Head = "causal", prepare_query_key: llama.PrepareQueryKey = llama.rotated) -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, how="layer", bias=False)
            a = llama.attention(b, c, b.identity(h, "attention.input"), prepare_query_key)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, c.attention_bias, site="attention.update")
            x = b.add(x, a, site="middle")
            x = b.add(x, llama.gated_mlp(b, c, b.identity(h, "mlp.input")), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", how="layer", bias=False)
    return b.build_with_head(x, head, scale=c.logit_scale)
