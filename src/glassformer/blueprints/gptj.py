"""GPT-J (https://github.com/kingoflolz/mesh-transformer-jax): attention and MLP side by side, RoPE on neighbor numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from glassformer.blueprints import gpt2
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.bounds import BOUNDS, SIZE
from glassformer.blueprints.config import GPTConfig
from glassformer.ground.errors import ConfigError
from glassformer.ops.rope import Rope


@dataclass(kw_only=True)
class Config(GPTConfig):
    model_type = "gptj"
    title = "GPT-J"
    default_fields = {"vocab_size": 50400, "bos_token_id": 50256, "eos_token_id": 50256}
    bounds = {**BOUNDS, "rotary_dim": SIZE}

    hidden_size: int = 4096
    num_hidden_layers: int = 28
    num_attention_heads: int = 16
    rotary_dim: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ConfigError(
                f"config field 'rotary_dim' is {self.rotary_dim}; RoPE rotates pairs of a head's {self.head_dim} numbers."
            )

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": self.rotation}

    @property
    def rotation(self) -> Rope:
        return Rope(partial_rotary_factor=self.rotary_dim / self.head_dim, interleaved=True)


FAMILY = replace(gpt2.FAMILY, name="GPTJ", class_suffixes={}, heads=("causal", "sequence", "question"))


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    heads, size, rope, eps = c.num_attention_heads, c.head_dim, c.rotation, c.layer_norm_epsilon
    x = b.dropout(b.embed(f"{base}wte"), c.embd_pdrop, f"{base}drop")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}h"):
            normed = b.norm(x, "ln_1", eps, how="layer")
            h = b.identity(normed, "attention.input")
            q = b.rotate(b.heads(h, "attn.q_proj", heads, size), "attn", rope, site="attention.query")
            k = b.rotate(b.heads(h, "attn.k_proj", heads, size), "attn", rope, site="attention.key")
            v = b.heads(h, "attn.v_proj", heads, size, site="attention.value")
            a = b.attend(q, k, v, "attn", dropout=c.attn_pdrop, dropout_module="attn.attn_dropout")
            a = b.linear(a, "attn.out_proj", c.hidden_size, site="attention.update")
            x = b.add(x, b.dropout(a, c.resid_pdrop, "attn.resid_dropout"), site="middle")
            h = b.linear(b.identity(normed, "mlp.input"), "mlp.fc_in", c.inner, bias=True)
            h = b.activate(h, c.hidden_act, "mlp.hidden", "mlp.act")
            h = b.linear(h, "mlp.fc_out", c.hidden_size, bias=True, site="mlp.update")
            x = b.add(x, b.dropout(h, c.resid_pdrop, "mlp.dropout"), site="residual")
    x = b.norm(x, f"{base}ln_f", eps, site="final", how="layer")
    return b.build_with_head(x, head, bias=True)
