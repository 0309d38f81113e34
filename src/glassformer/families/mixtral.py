"""Mixtral: Mistral's blocks, whose MLP is a mixture of experts.

Shapes: x (tokens, hidden).
"""

from __future__ import annotations

from torch import Tensor, nn

from glassformer.blueprints.mixtral import Config
from glassformer.families import llama
from glassformer.families.shared.routed import RoutedCausalLM
from glassformer.layers import MLP, ActivationFunction, Linear, RoutedMLP


class MixtralExpert(MLP):
    printed_name = "BlockSparseTop2MLP"

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.w1 = Linear(c.hidden_size, c.expert_size, bias=False)
        self.w2 = Linear(c.expert_size, c.hidden_size, bias=False)
        self.w3 = Linear(c.hidden_size, c.expert_size, bias=False)
        self.act_fn = ActivationFunction(c.hidden_act)

    def neurons(self, x: Tensor) -> Tensor:
        return self.act_fn(self.w1(x)) * self.w3(x)

    def down(self, neurons: Tensor) -> Tensor:
        return self.w2(neurons)


class MixtralDecoderLayer(llama.LlamaDecoderLayer):
    mlp_name = "block_sparse_moe"

    def make_mlp(self, c: Config, layer: int) -> nn.Module:  # type: ignore[override]
        experts = (MixtralExpert(c) for _ in range(c.num_experts))
        return RoutedMLP(c.hidden_size, experts, c.num_experts_per_tok, c.norm_topk_prob)


class MixtralModel(llama.LlamaModel):
    family = "Mixtral"
    config_class = Config
    layer = MixtralDecoderLayer
    head_classes = {"ForCausalLM": RoutedCausalLM}


Model = MixtralModel
