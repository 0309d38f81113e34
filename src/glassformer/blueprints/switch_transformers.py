"""Switch Transformers (https://arxiv.org/abs/2101.03961): T5 whose every other MLP is one of many experts, without gates.

The reference drops a token that comes after `expert_capacity` others of its row at the same expert, padding among them,
where a whole text is read at once, and none where tokens are read one by one. Here none is dropped: what a row gets depends
neither on how it is cut nor on its batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import t5
from glassformer.blueprints.blueprint import Blueprint, Builder, Head, Value
from glassformer.blueprints.bounds import LENGTH, SHARE, Bounds


@dataclass(kw_only=True)
class Config(t5.Config):
    model_type = "switch_transformers"
    title = "Switch Transformers"
    aliases = {**t5.Config.aliases, "dense_act_fn": "feed_forward_proj"}
    bounds = {
        **t5.Config.bounds,
        **dict.fromkeys(("encoder_sparse_step", "decoder_sparse_step"), Bounds()),
        **dict.fromkeys(("num_sparse_encoder_layers", "num_sparse_decoder_layers"), Bounds()),
        "expert_capacity": LENGTH,
        "router_jitter_noise": SHARE,
    }
    fixed_fields = {
        "router_dtype": "float32", "num_selected_experts": 1, "is_gated_act": False, "tie_word_embeddings": True,
        "router_ignore_padding_tokens": False,
    }  # fmt: skip
    default_layers = 12

    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_encoder_layers: int = 12
    num_attention_heads: int = 12
    num_experts: int = 8
    num_sparse_encoder_layers: int = 3
    num_sparse_decoder_layers: int = 3
    encoder_sparse_step: int | None = None  # every how many layers there are experts; None: as their number says
    decoder_sparse_step: int | None = None
    router_bias: bool = False
    router_jitter_noise: float = 0.01  # of what the router reads, in training
    expert_capacity: int = 64  # of the reference's experts; here they take all tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        for stack, layers, count in (
            ("encoder", self.num_encoder_layers, self.num_sparse_encoder_layers),
            ("decoder", self.num_hidden_layers, self.num_sparse_decoder_layers),
        ):
            if getattr(self, f"{stack}_sparse_step") is None:
                object.__setattr__(self, f"{stack}_sparse_step", layers // count if count else layers)

    @property
    def num_experts_per_tok(self) -> int:
        return 1

    @classmethod
    def own_name(cls, name: str) -> str:
        return "dense_act_fn" if name in ("hidden_act", "feed_forward_proj") else super().own_name(name)

    @property
    def gated(self) -> bool:
        return False

    @property
    def hidden_act(self) -> str:
        return self.feed_forward_proj

    def has_experts(self, layer: int, decoder: bool) -> bool:
        """Whether a block's MLP is a mixture of experts."""
        step = self.decoder_sparse_step if decoder else self.encoder_sparse_step
        return bool(step and (step == 1 or layer % step == 1))


FAMILY = replace(
    t5.FAMILY,
    name="SwitchTransformers",
    modules={
        **{name: kind for name, kind in t5.FAMILY.modules.items() if "DenseReluDense" not in name},
        "encoder.block.*.layer.1": "LayerFF mlp layer_norm dropout",
        "decoder.block.*.layer.2": "LayerFF mlp layer_norm dropout",
        "mlp": "DenseActDense wi wo dropout act",
        "mlp[experts]": "SparseMLP router experts",
        "mlp.router": "Top1Router classifier",
        "experts.*": "DenseActDense wi wo",
    },
)


def mlp(b: Builder, c: Any, h: Value, layer: str, decoder: bool) -> Value:
    """One MLP, or the expert that the router likes best, times its probability."""
    module = f"{layer}.mlp"
    if not c.has_experts(b.layer, decoder):
        return t5.plain_mlp(b, c, h, module)
    experts = [f"{module}.experts.expert_{index}." for index in range(c.num_experts)]
    router = f"{module}.router.classifier"
    scores = b.linear(h, router, c.num_experts, c.router_bias, site="mlp.router", jitter=c.router_jitter_noise)
    shares = b.route(scores, module + ".router", 1, False)
    h = b.expert_gate(
        h, shares, [(f"{expert}wi",) for expert in experts], 1, c.intermediate_size, c.hidden_act, dropout=c.dropout_rate
    )
    return b.expert_linear(h, shares, [f"{expert}wo" for expert in experts], 1, c.hidden_size)


def blueprint(c: Config, head: Head = "seq2seq") -> Blueprint:
    return t5.blueprint(c, head, mlp)
