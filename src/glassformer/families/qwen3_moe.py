"""Qwen3's mixtures of experts: Qwen3's blocks, whose MLP is a mixture of experts in all of them, or in some."""

from __future__ import annotations

from torch import nn

from glassformer.blueprints.qwen3_moe import Config
from glassformer.families import llama, qwen3
from glassformer.families.shared.routed import RoutedCausalLM
from glassformer.layers import GatedMLP, RoutedMLP


class Qwen3MoeDecoderLayer(qwen3.Qwen3DecoderLayer):
    def make_mlp(self, c: Config, layer: int) -> nn.Module:  # type: ignore[override]
        if layer not in c.routed_layers:
            return super().make_mlp(c, layer)
        experts = (GatedMLP(c.hidden_size, c.expert_size, c.hidden_act) for _ in range(c.num_experts))
        return RoutedMLP(c.hidden_size, experts, c.num_experts_per_tok, c.norm_topk_prob)


class Qwen3MoeModel(llama.LlamaModel):
    family = "Qwen3Moe"
    config_class = Config
    layer = Qwen3MoeDecoderLayer
    head_classes = {"ForCausalLM": RoutedCausalLM}


Model = Qwen3MoeModel
