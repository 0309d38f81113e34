"""StableLM (https://arxiv.org/abs/2402.17834): Llama's shape with layer norms and RoPE on a part of each head.

Some have attention and MLP side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import llama
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "stablelm"
    title = "StableLM"
    default_share = 0.25
    default_fields = {
        "vocab_size": 50304, "hidden_size": 2560, "num_hidden_layers": 32, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    aliases = {"layer_norm_eps": "rms_norm_eps", "use_qkv_bias": "attention_bias"}
    fixed_fields = {"mlp_bias": False}

    intermediate_size: int = 6912
    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5  # of its layer norms
    use_parallel_residual: bool = False
    qk_layernorm: bool = False
    hidden_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_joined_heads()

    @property
    def output_bias(self) -> bool:
        return False


FAMILY = replace(
    llama.FAMILY,
    name="StableLm",
    heads=("causal", "sequence", "token"),
    modules={**llama.FAMILY.modules, "q_layernorm": "LayerNormPerHead", "k_layernorm": "LayerNormPerHead"},
)


def heads_of(b: Builder, c: Config, h: Value, name: str, heads: int) -> Value:
    """Heads, perhaps with a norm each."""
    made = llama.projected_heads(b, c, h, name, heads)
    return b.head_norms(made, f"self_attn.{name}_layernorm.norms", c.rms_norm_eps) if c.qk_layernorm else made


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.rms_norm_eps
    x = b.embed(f"{base}embed_tokens")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            normed = b.norm(x, "input_layernorm", eps, how="layer")
            a = llama.attention(b, c, b.identity(normed, "attention.input"), make_heads=heads_of)
            a = b.linear(a, "self_attn.o_proj", c.hidden_size, site="attention.update")
            x = b.add(x, a, site="middle")
            if not c.use_parallel_residual:
                normed = b.norm(x, "post_attention_layernorm", eps, how="layer")
            h = llama.gated_mlp(b, c, b.identity(normed, "mlp.input"))
            x = b.add(x, b.dropout(h, c.hidden_dropout, "dropout"), site="residual")
    x = b.norm(x, f"{base}norm", eps, site="final", how="layer")
    return b.build_with_head(x, head, token_head="score")
