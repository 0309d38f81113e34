"""A mixture of experts (https://arxiv.org/abs/1701.06538): many MLPs, of which a router chooses a few for each token.

Tokens are sorted by the expert that they go to, so that each expert computes all of its tokens at once, and nobody else's.

Shapes: x (batch, length, hidden); router scores and shares (batch, length, experts); chosen (tokens, slots), where a token
has a slot for each expert that it goes to, in the order of the experts' numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.torch.container import FamilyModule
from glassformer.torch.layers import ActivationFunction, Linear


class Expert(FamilyModule):
    """An expert's MLP, gated if it has three projections.

    `limit`: what the gate is cut at above, and the other at both sides; `offset`: added there. `dropout`: of its neurons.
    """

    def __init__(
        self, parts: Mapping[str, Linear], names: Sequence[str], activation: str, limit: float | None, offset: float,
        dropout: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.act_fn = ActivationFunction(activation)
        self.names, self.limit, self.offset = names, limit, offset
        if dropout is not None:
            self.dropout = nn.Dropout(dropout)

    def neurons(self, x: Tensor) -> Tensor:
        neurons = self._all_neurons(x)
        return self.dropout(neurons) if "dropout" in self._modules else neurons

    def _all_neurons(self, x: Tensor) -> Tensor:
        gate, *ups = (self._modules[name](x) for name in self.names[:-1])  # type: ignore[misc]
        if not ups:
            return self.act_fn(gate)
        up = ups[0]
        if self.limit is not None:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.act_fn(gate) * (up + self.offset if self.offset else up)

    def down(self, neurons: Tensor) -> Tensor:
        return self._modules[self.names[-1]](neurons)  # type: ignore[misc]


class Slots(NamedTuple):
    """All tokens' slots, and the same sorted by expert."""

    shares: Tensor  # (tokens, slots)
    order: Tensor  # the slots, sorted
    places: Tensor  # where each slot went
    experts: Tensor  # which each sorted slot goes to


class ExpertList(nn.ModuleList):
    """All experts of a block. `slots`: how many of them a token goes to at most; `shares_inputs`: an expert gets a token
    times its share, and what it makes of that counts as it is; `prefix`: of their names, before their numbers."""

    def __init__(
        self, experts: Iterable[Expert], slots: int, shares_inputs: bool = False, prefix: str = ""
    ) -> None:  # fmt: skip
        super().__init__()
        self.slots, self.shares_inputs, self.prefix = slots, shares_inputs, prefix
        for index, expert in enumerate(experts):
            self.add_module(f"{prefix}{index}", expert)

    def __repr__(self) -> str:
        """With the names of all experts, where they have more than a number."""
        return nn.Module.__repr__(self) if self.prefix else super().__repr__()

    def _get_abs_string_index(self, idx: int) -> str:
        return self.prefix + super()._get_abs_string_index(idx)  # type: ignore[no-untyped-call]

    def neurons(self, x: Tensor, shares: Tensor) -> Tensor:
        """Those of each token's experts, side by side."""
        slots = self._sorted(shares)
        inputs = x.flatten(0, -2)[slots.order // self.slots]
        if self.shares_inputs:
            inputs = inputs * slots.shares.flatten()[slots.order, None]
        neurons = self._by_expert(lambda expert: expert.neurons, inputs, slots.experts)
        return neurons[slots.places].view(*x.shape[:-1], -1)

    def update(self, neurons: Tensor, shares: Tensor) -> Tensor:
        """The sum of what each token's experts make of their neurons, each times its share."""
        slots = self._sorted(shares)
        inputs = neurons.reshape(len(slots.order), -1)[slots.order]
        outputs = self._by_expert(lambda expert: expert.down, inputs, slots.experts)
        made = outputs[slots.places].view(*slots.shares.shape, -1)
        update = (made if self.shares_inputs else made * slots.shares[..., None]).sum(1)
        return update.view(*neurons.shape[:-1], -1)

    def _sorted(self, shares: Tensor) -> Slots:
        own, chosen = self.choices(shares.flatten(0, -2))
        experts, order = chosen.flatten().sort(stable=True)
        return Slots(own, order, order.argsort(), experts)

    def choices(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The largest shares of each token, and the experts that they belong to, by number; a share of 0 belongs to none,
        which has the number after the last."""
        experts = shares.detach().abs().topk(self.slots, -1).indices
        experts = experts.masked_fill(shares.detach().gather(-1, experts) == 0, len(self)).sort(-1).values
        return nn.functional.pad(shares, (0, 1)).gather(-1, experts), experts

    def _by_expert(
        self, half: Callable[[Expert], Callable[[Tensor], Tensor]], rows: Tensor, experts: Tensor
    ) -> Tensor:  # fmt: skip
        """One half of each expert's MLP, of its own part of the rows; those that go to no expert give zeros.

        In a compiled graph, where no shape may depend on where tokens go, each expert takes all rows."""
        if torch.compiler.is_compiling():
            made = nn.functional.pad(torch.stack([half(expert)(rows) for expert in self]), (0, 0, 0, 0, 0, 1))  # type: ignore[arg-type]
            return made[experts, torch.arange(len(rows), device=rows.device)]
        counts = experts.bincount(minlength=len(self) + 1).tolist()
        *parts, unused = rows.split(counts)  # type: ignore[no-untyped-call]
        results = [half(expert)(part) for expert, part in zip(self, parts, strict=True) if len(part)]  # type: ignore[arg-type]
        if len(unused) or not results:
            width = half(self[0])(rows[:0]).shape[-1]  # type: ignore[arg-type]
            results.append(unused.new_zeros(len(unused), width))
        return torch.cat(results)


def load_balancing_loss(router_logits: Iterable[Tensor], chosen: int, mask: Tensor | None = None) -> Tensor:
    """How unevenly tokens are spread over the experts (https://arxiv.org/abs/2101.03961, equations 4 to 6); at least
    `chosen`, where they are spread evenly.

    Args:
        router_logits: of each layer, (tokens, experts).
        mask: 1 for real tokens, 0 for padding, (batch, length).
    """
    layers = torch.stack([logits.softmax(-1) for logits in router_logits])
    goes = torch.zeros_like(layers).scatter(-1, layers.topk(chosen, -1).indices, 1.0)
    real = torch.ones(layers.shape[1], device=layers.device) if mask is None else mask.reshape(-1).to(layers)
    total = real.sum() * len(layers)
    tokens, probability = ((values.float() * real[:, None]).sum((0, 1)) / total for values in (goes, layers))
    return (tokens * probability).sum() * layers.shape[-1]


def with_stacked_experts(tensors: dict[str, Tensor], count: int, how: str) -> dict[str, Tensor]:
    """`how`: columns of gate and up "in turns"; or "side by side", all of the gate first; or the same as rows, "stacked", or
    "rows" with the names that Granite's files have."""
    stored = {name: value for name, value in tensors.items() if ".experts." not in name}
    homes = dict.fromkeys(name.partition(".experts.")[0] for name in tensors if ".experts." in name)
    for home in homes:

        def stacked(name: str, home: str = home) -> Tensor:
            parts = [tensors[f"{home}.experts.{index}.{name}"] for index in range(count)]
            return torch.stack(parts).mT if name.endswith("weight") else torch.stack(parts)

        if how == "rows":
            stored[f"{home}.input_linear.weight"] = torch.cat(
                (stacked("gate_proj.weight"), stacked("up_proj.weight")), -1
            ).mT
            stored[f"{home}.output_linear.weight"] = stacked("down_proj.weight").mT
            stored |= {name: value.contiguous() for name, value in stored.items() if name.startswith(f"{home}.")}
            continue
        if how == "stacked":
            both = torch.cat((stacked("gate_proj.weight"), stacked("up_proj.weight")), -1)
            stored[f"{home}.experts.gate_up_proj"] = both.mT.contiguous()
            stored[f"{home}.experts.down_proj"] = stacked("down_proj.weight").mT.contiguous()
            continue
        for kind, ending in (("weight", ""), ("bias", "_bias")):
            if f"{home}.experts.0.down_proj.{kind}" not in tensors:
                continue
            pair = stacked(f"gate_proj.{kind}"), stacked(f"up_proj.{kind}")
            both = torch.stack(pair, -1).flatten(-2) if how == "in turns" else torch.cat(pair, -1)
            stored[f"{home}.experts.gate_up_proj{ending}"] = both
            stored[f"{home}.experts.down_proj{ending}"] = stacked(f"down_proj.{kind}").contiguous()
    return stored
