"""Experts as some files have them: those of a block stacked and transposed, gates and what they multiply in turn."""

from __future__ import annotations

import torch
from torch import Tensor


def with_stacked_experts(tensors: dict[str, Tensor], count: int) -> dict[str, Tensor]:
    stored = {name: value for name, value in tensors.items() if ".mlp.experts." not in name}
    homes = dict.fromkeys(name.partition(".experts.")[0] for name in tensors if ".mlp.experts." in name)
    for home in homes:

        def stacked(name: str, home: str = home) -> Tensor:
            parts = [tensors[f"{home}.experts.{number}.{name}"] for number in range(count)]
            return torch.stack(parts).mT if name.endswith("weight") else torch.stack(parts)

        for kind, ending in (("weight", ""), ("bias", "_bias")):
            pairs = torch.stack([stacked(f"gate_proj.{kind}"), stacked(f"up_proj.{kind}")], -1)
            stored[f"{home}.experts.gate_up_proj{ending}"] = pairs.flatten(-2)
            stored[f"{home}.experts.down_proj{ending}"] = stacked(f"down_proj.{kind}").contiguous()
    return stored
