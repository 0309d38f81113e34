"""OLMoE: Llama's blocks, with norms over all of query and key, whose MLP is a mixture of experts."""

from __future__ import annotations

from torch import nn

from glassformer.blueprints.olmoe import Config
from glassformer.families import llama, olmo2
from glassformer.families.shared.decoder import Decoder
from glassformer.families.shared.routed import RoutedCausalLM
from glassformer.layers import GatedMLP, RoutedMLP


class OlmoeDecoderLayer(llama.LlamaDecoderLayer):
    attention = olmo2.JointNormAttention

    def make_mlp(self, c: Config, layer: int) -> nn.Module:  # type: ignore[override]
        experts = (GatedMLP(c.hidden_size, c.expert_size, c.hidden_act) for _ in range(c.num_experts))
        return RoutedMLP(c.hidden_size, experts, c.num_experts_per_tok, c.norm_topk_prob)


class OlmoeModel(llama.LlamaModel):
    family = "Olmoe"
    config_class = Config
    layer = OlmoeDecoderLayer
    heads = {"causal": Decoder.heads["causal"]}
    head_classes = {"ForCausalLM": RoutedCausalLM}


Model = OlmoeModel
