"""XLM-RoBERTa-XL (https://arxiv.org/abs/2105.00572): a larger XLM-RoBERTa, with the norms before attention and MLP."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import bert, roberta
from glassformer.blueprints.blueprint import Blueprint, Builder, Head
from glassformer.blueprints.megatron_bert import embeddings


@dataclass(kw_only=True)
class Config(roberta.Config):
    model_type = "xlm-roberta-xl"
    title = "XLM-RoBERTa-XL"
    default_fields = {"vocab_size": 250880, "hidden_size": 2560, "num_hidden_layers": 36}

    num_attention_heads: int = 32
    intermediate_size: int = 10240
    max_position_embeddings: int = 514
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-5


FAMILY = replace(
    roberta.FAMILY,
    name="XLMRobertaXL",
    modules={
        **roberta.FAMILY.modules,
        "encoder": "Encoder layer LayerNorm",
        "encoder.layer.*": "Layer attention intermediate output LayerNorm",
        "attention": "Attention self output self_attn_layer_norm",
        "attention.output": "SelfOutput",
        "output": "Output",
    },
)


def blueprint(c: Config, head: Head = "masked") -> Blueprint:
    b, base = Builder(c), FAMILY.prefix(head)
    norms = ("attention.self_attn_layer_norm", "LayerNorm", "LayerNorm")
    x = bert.prenorm_states(b, c, embeddings(b, c, base), base, norms, dropped=False)
    return roberta.with_head(b, c, x, base, head)
