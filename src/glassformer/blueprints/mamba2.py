"""Mamba-2 (https://arxiv.org/abs/2405.21060): each layer keeps a state, and is all that its block has."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.blueprints import state_space
from glassformer.blueprints.blueprint import Blueprint, Builder, Family, Head


@dataclass(kw_only=True)
class Config(state_space.Config):
    model_type = "mamba2"
    title = "Mamba-2"
    default_fields = {
        "vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "bos_token_id": 0, "eos_token_id": 2,
        "pad_token_id": 1,
    }  # fmt: skip
    aliases = {"num_heads": "num_attention_heads"}
    bounds = state_space.Config.state_bounds
    state_fields = {
        "heads": "num_attention_heads", "head_size": "head_dim", "groups": "n_groups", "key_size": "state_size",
        "kernel": "conv_kernel", "activation": "hidden_act", "eps": "layer_norm_epsilon", "bias": "use_bias",
        "conv_bias": "use_conv_bias", "output_bias": "use_bias",
    }  # fmt: skip

    max_position_embeddings: int = 2**20  # no position is embedded: a text may be as long as one likes
    num_attention_heads: int = 128
    head_dim: int = 64
    state_size: int = 128
    expand: int = 2
    n_groups: int = 8
    conv_kernel: int = 4
    hidden_act: str = "silu"
    layer_norm_epsilon: float = 1e-5
    use_bias: bool = False
    use_conv_bias: bool = True
    initializer_range: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")
        self.check_states(self.expand * self.hidden_size)


FAMILY = Family(
    name="Mamba2",
    base="backbone",
    heads=("causal",),
    modules={
        "": "Model embeddings layers norm_f",
        "layers.*": "Block norm mixer",
        "layers.*.norm": "RMSNorm",
        "norm_f": "RMSNorm",
        "mixer": "Mixer conv1d in_proj norm out_proj",
    },
)


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    b, base, eps = Builder(c), FAMILY.prefix(head), c.layer_norm_epsilon
    x = b.embed(f"{base}embeddings")
    for layer in range(c.num_hidden_layers):
        with b.block(layer, f"{base}layers"):
            h = b.norm(x, "norm", eps, site="attention.input")
            x = b.add(x, state_space.mixer(b, c.state_space, h, "mixer"), site="residual")
    x = b.norm(x, f"{base}norm_f", eps, site="final")
    return b.build_with_head(x, head)
