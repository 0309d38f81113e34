"""gpt-oss: Llama's blocks with attention sinks, whose MLP is a mixture of experts with clamped gates.

Shapes: x (tokens, hidden).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.blueprints.gpt_oss import Config
from glassformer.families import llama
from glassformer.families.shared.routed import RoutedCausalLM
from glassformer.layers import GatedMLP, RoutedMLP
from glassformer.layers.mlp import quick_gelu


class GptOssExpert(GatedMLP):
    printed_name = "Expert"

    def __init__(self, c: Config) -> None:
        super().__init__(c.hidden_size, c.expert_size, c.hidden_act, bias=True)
        self.limit = c.swiglu_limit

    def neurons(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x).clamp(max=self.limit)
        up = self.up_proj(x).clamp(-self.limit, self.limit)
        return quick_gelu(gate) * (up + 1)


class GptOssAttention(llama.LlamaAttention):
    def __init__(self, c: Config, layer: int) -> None:
        super().__init__(c, layer)
        self.sinks = nn.Parameter(c.initializer_range * torch.randn(c.num_attention_heads))

    def sink_scores(self) -> Tensor:
        return self.sinks


class GptOssDecoderLayer(llama.LlamaDecoderLayer):
    attention = GptOssAttention

    def make_mlp(self, c: Config, layer: int) -> nn.Module:  # type: ignore[override]
        experts = (GptOssExpert(c) for _ in range(c.num_experts))
        return RoutedMLP(c.hidden_size, experts, c.num_experts_per_tok, c.norm_topk_prob, router="router", bias=True)


class GptOssModel(llama.LlamaModel):
    family = "GptOss"
    config_class = Config
    layer = GptOssDecoderLayer
    head_classes = {"ForCausalLM": RoutedCausalLM}

    def stored_form(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Experts are stacked and transposed, and gates alternate with what they are multiplied with."""
        stored = {name: value for name, value in tensors.items() if ".mlp.experts." not in name}
        homes = dict.fromkeys(name.partition(".experts.")[0] for name in tensors if ".mlp.experts." in name)
        for home in homes:

            def stacked(name: str, home: str = home) -> Tensor:
                parts = [tensors[f"{home}.experts.{number}.{name}"] for number in range(self.config.num_experts)]
                return torch.stack(parts).mT if name.endswith("weight") else torch.stack(parts)

            for kind, ending in (("weight", ""), ("bias", "_bias")):
                pairs = torch.stack([stacked(f"gate_proj.{kind}"), stacked(f"up_proj.{kind}")], -1)
                stored[f"{home}.experts.gate_up_proj{ending}"] = pairs.flatten(-2)
                stored[f"{home}.experts.down_proj{ending}"] = stacked(f"down_proj.{kind}").contiguous()
        return stored


Model = GptOssModel
