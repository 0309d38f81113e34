"""Mixtures of experts (https://arxiv.org/abs/1701.06538): an MLP of many, of which a router chooses a few for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Builder, Value
from glassformer.ground.errors import ConfigError

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")  # of an expert


@dataclass(kw_only=True)
class Config(shared.Config):
    """What the config of every family with experts has; a mixin, put after the family's own, whose defaults win."""

    num_experts: int = 8
    num_experts_per_tok: int = 2
    norm_topk_prob: bool = False  # whether the shares of the chosen experts add up to one
    output_router_logits: bool = False
    router_aux_loss_coef: float = 0.001

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if "num_local_experts" in raw:  # as some versions of the reference write it
            raw = {"num_experts": raw["num_local_experts"], **raw}
            del raw["num_local_experts"]
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts_per_tok > self.num_experts:
            raise ConfigError(
                f"config field 'num_experts_per_tok' is {self.num_experts_per_tok}, but there are {self.num_experts} "
                f"experts ({self.own_name('num_experts')!r})."
            )

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(range(self.num_hidden_layers))

    @property
    def expert_size(self) -> int:
        """How many neurons an expert has."""
        size: int = getattr(self, "moe_intermediate_size", None) or self.intermediate_size
        return size


def routed_mlp(
    b: Builder, c: Any, x: Value, module: str = "mlp", router: str = "gate", names: tuple[str, str, str] = PROJECTIONS,
    bias: bool = False, how: str | None = None, limit: float | None = None, offset: float = 0.0, shared: str = "",
    shared_size: int = 0, shared_gate: str = "", **routing: Any,
) -> Value:  # fmt: skip
    """The update of an MLP whose experts are `module.experts.0`, `module.experts.1`, …; `names`: of their projections.

    `shared`: an expert of `shared_size` neurons that every token goes to, with the share 1, or the sigmoid of `shared_gate`.
    `routing`: how experts are chosen and weighed (`build_route`).
    """
    gate, up, down = names
    experts = [f"{module}.experts.{index}." for index in range(c.num_experts)]
    chosen, how = c.num_experts_per_tok, how or c.hidden_act
    common = shared_update(b, c, x, f"{module}.{shared}", names, shared_size, how, bias) if shared_size else None
    if common is not None and shared_gate:
        share = b.linear(x, f"{module}.{shared_gate}", 1)
        common = b.gated(share, common, "sigmoid", module)
    scores = b.linear(x, f"{module}.{router}", c.num_experts, bias and not shared_size, site="mlp.router")
    shares = b.route(scores, f"{module}.{router}", chosen, c.norm_topk_prob, **routing)
    gates = [(e + gate, e + up) for e in experts]
    h = b.expert_gate(x, shares, gates, chosen, c.expert_size, how, bias, limit, offset)
    site = "mlp.update" if common is None else None
    update = b.expert_linear(h, shares, [e + down for e in experts], chosen, c.hidden_size, bias, site)
    if common is None:
        return update
    return b.add(common, update, "mlp.update", module, of=("the shared expert", "the chosen experts"))


def shared_update(
    b: Builder, c: Any, x: Value, module: str, names: tuple[str, str, str], size: int, how: str, bias: bool = False
) -> Value:
    """What an expert adds that every token goes to."""
    gate, up, down = (f"{module}.{name}" for name in names)
    return b.linear(b.gate(x, gate, up, size, how, bias, site=None), down, c.hidden_size, bias)
