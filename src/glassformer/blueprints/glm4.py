"""GLM-4 (https://arxiv.org/abs/2406.12793), of 2025: norms before and after both parts, RoPE on neighbors in half a head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glassformer.blueprints import gemma2, llama, phi3
from glassformer.blueprints.blueprint import Blueprint, Head


@dataclass(kw_only=True)
class Config(llama.Config):
    model_type = "glm4"
    title = "GLM-4"
    default_share = 0.5
    interleaved_rope = True
    default_fields = {
        "vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 40, "pad_token_id": 151329,
        "eos_token_id": [151329, 151336, 151338],
    }  # fmt: skip
    fixed_fields = {"mlp_bias": False}

    intermediate_size: int = 13696
    num_key_value_heads: int = 2
    head_dim: int = 128
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True

    @property
    def output_bias(self) -> bool:
        return False


FAMILY = replace(llama.FAMILY, name="Glm4", heads=("causal", "sequence", "token"))
NORMS = ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")


def blueprint(c: Config, head: Head = "causal") -> Blueprint:
    return gemma2.normed_both_ways(c, head, norms=NORMS, mlp=phi3.fused_mlp)
