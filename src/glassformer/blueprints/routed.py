"""Mixtures of experts (https://arxiv.org/abs/1701.06538): an MLP of many, of which a router chooses a few for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Builder, Value
from glassformer.ground.errors import ConfigError

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")  # of an expert
KINDS = ("dense", "sparse")  # of MLPs, in a list of what layers have


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


@dataclass(kw_only=True)
class GroupsConfig(Config):
    """Experts stand in groups, and some more are there for all tokens (DeepSeek's way)."""

    aliases = {"n_routed_experts": "num_experts"}

    norm_topk_prob: bool = True
    router_aux_loss_coef: float = 0.0
    n_shared_experts: int = 1
    n_group: int | None = 1
    topk_group: int | None = 1  # how many groups the experts of a token may be in
    routed_scaling_factor: float = 1.0  # what the shares of those chosen are multiplied by

    def __post_init__(self) -> None:
        super().__post_init__()
        groups, kept = self.n_group or 1, self.topk_group or 1
        if kept > groups:
            raise ConfigError(f"config field 'topk_group' is {kept}, but there are {groups} groups ('n_group').")
        if self.num_experts % groups or (groups > 1 and self.num_experts < 2 * groups):
            raise ConfigError(
                f"config field 'n_group' is {groups}, but {self.num_experts} experts ({self.own_name('num_experts')!r}) "
                "make no such groups of two or more each."
            )
        if self.num_experts_per_tok > kept * (self.num_experts // groups):
            raise ConfigError(
                f"config field 'num_experts_per_tok' is {self.num_experts_per_tok}, but the best groups ('topk_group') have "
                f"{kept * (self.num_experts // groups)} experts."
            )


@dataclass(kw_only=True)
class GroupedConfig(GroupsConfig):
    """The first layers have no experts."""

    first_k_dense_replace: int = 1  # layers without experts

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(range(self.first_k_dense_replace, self.num_hidden_layers))


@dataclass(kw_only=True)
class ListedConfig(GroupedConfig):
    """Or a list says which layers have experts. A mixin, put after the family's own."""

    mlp_layer_types: list[str] | None = None  # None: the first ones are dense

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, first = self.num_hidden_layers, min(self.first_k_dense_replace, self.num_hidden_layers)
        if self.mlp_layer_types is None:
            object.__setattr__(self, "mlp_layer_types", ["dense"] * first + ["sparse"] * (layers - first))
        kinds = self.mlp_layer_types or []
        if len(kinds) != layers or not set(kinds) <= set(KINDS):
            raise ConfigError(
                f"config field 'mlp_layer_types' has to say of each of the {layers} layers whether it is 'dense' or "
                "'sparse'."
            )

    @property
    def routed_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, kind in enumerate(self.mlp_layer_types or ()) if kind == "sparse")


GROUPED_MODULES = {
    "mlp[experts]": "MoE gate experts shared_experts",
    "experts.*": "MLP gate_proj up_proj down_proj",
    "shared_experts": "MLP",
}


def grouped_mlp(b: Builder, c: Any, x: Value, **routing: Any) -> Value:
    """By the sigmoid of each score, with a correction that evens out the experts' loads (https://arxiv.org/abs/2408.15664)."""
    own = {"how": "sigmoid", "correction": "mlp.gate.e_score_correction_bias", "floor": 1e-20, "group_best": 2, **routing}
    return routed_mlp(
        b, c, x, shared="shared_experts", shared_size=c.n_shared_experts * c.moe_intermediate_size,
        groups=c.n_group or 1, kept_groups=c.topk_group or 1, scale=c.routed_scaling_factor, **own,
    )  # fmt: skip


def routed_mlp(
    b: Builder, c: Any, x: Value, module: str = "mlp", router: str = "gate", names: tuple[str, str, str] = PROJECTIONS,
    bias: bool = False, activation: str | None = None, limit: float | None = None, offset: float = 0.0, shared: str = "",
    shared_size: int = 0, shared_gate: str = "", shared_names: tuple[str, str, str] | None = None,
    shares_inputs: bool = False, site: str | None = "mlp.update", scaled: bool = False, **routing: Any,
) -> Value:  # fmt: skip
    """The update of an MLP whose experts are `module.experts.0`, `module.experts.1`, …; `names`: of their projections.

    `shared`: an expert of `shared_size` neurons that every token goes to, with the share 1, or the sigmoid of `shared_gate`;
    `shared_names`: of its projections, where they have others.
    `shares_inputs`: an expert gets a token times its share. `scaled`: the shares have a factor that is none of the experts'.
    `routing`: how experts are chosen and weighed (`build_route`).
    """
    gate, up, down = names
    experts = [f"{module}.experts.{index}." for index in range(c.num_experts)]
    chosen, activation = c.num_experts_per_tok, activation or c.hidden_act
    common = None
    if shared_size:
        common = shared_update(b, c, x, f"{module}.{shared}", shared_names or names, shared_size, activation, bias)
    if common is not None and shared_gate:
        share = b.linear(x, f"{module}.{shared_gate}", 1)
        common = b.gated(share, common, "sigmoid", module)
    scores = b.linear(x, f"{module}.{router}", c.num_experts, bias and not shared_size, site="mlp.router")
    shares = b.route(scores, f"{module}.{router}", chosen, c.norm_topk_prob, **routing)
    gates = [(e + gate, e + up) for e in experts]
    h = b.expert_gate(x, shares, gates, chosen, c.expert_size, activation, bias, limit, offset, shares_inputs)
    of_all = site if common is None else None
    update = b.expert_linear(
        h, shares, [e + down for e in experts], chosen, c.hidden_size, bias, of_all, shares_inputs, scaled
    )
    if common is None:
        return update
    return b.add(common, update, "mlp.update", module, of=("the shared expert", "the chosen experts"))


def shared_update(
    b: Builder, c: Any, x: Value, module: str, names: tuple[str, str, str], size: int, activation: str, bias: bool = False
) -> Value:
    """What an expert adds that every token goes to."""
    gate, up, down = (f"{module}.{name}" for name in names)
    return b.linear(b.gate(x, gate, up, size, activation, bias, site=None), down, c.hidden_size, bias)
