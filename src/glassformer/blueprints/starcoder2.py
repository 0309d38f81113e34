"""StarCoder2 (https://arxiv.org/abs/2402.19173): pre-norm with layer norms and biases, RoPE, GQA, an MLP without a gate."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama, mistral
from glassformer.blueprints.blueprint import Blueprint, Builder, Head


@dataclass(kw_only=True)
class Config(mistral.Config):
    model_type = "starcoder2"
    title = "StarCoder2"
    default_fields = {
        "vocab_size": 49152, "hidden_size": 3072, "num_hidden_layers": 30, "bos_token_id": 50256, "eos_token_id": 50256,
        "initializer_range": 0.018042,
    }  # fmt: skip
    aliases = {"norm_epsilon": "rms_norm_eps", "use_bias": "attention_bias"}
    fixed_fields = {"mlp_bias": False, "norm_type": "layer_norm", "mlp_type": "default"}

    intermediate_size: int = 12288
    num_attention_heads: int = 24
    num_key_value_heads: int = 2
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5  # of its layer norms
    attention_bias: bool = True  # of all projections
    tie_word_embeddings: bool = True
    residual_dropout: float = 0.0
    embedding_dropout: float = 0.0


FAMILY = replace(llama.FAMILY, name="Starcoder2", heads=("causal", "sequence", "token"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    eps, bias = c.rms_norm_eps, c.attention_bias
    x = b.dropout(b.embed(f"{base}embed_tokens"), c.embedding_dropout)
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "input_layernorm", eps, site="attention.input", how="layer")
            a = b.linear(llama.attention(b, c, h), "self_attn.o_proj", c.hidden_size, bias, site="attention.update")
            x = b.add(x, b.dropout(a, c.residual_dropout), site="middle")
            h = b.norm(x, "post_attention_layernorm", eps, site="mlp.input", how="layer")
            h = b.activate(b.linear(h, "mlp.c_fc", c.intermediate_size, bias), c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.c_proj", c.hidden_size, bias, site="mlp.update")
            x = b.add(x, b.dropout(h, c.residual_dropout), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", how="layer")
    return b.build_with_head(x, head, token_head="score")
