"""What families share whose layers have states of Mamba-2's kind (https://arxiv.org/abs/2405.21060).

One projection makes a gate, what goes through a short convolution, and a time step for each head. Out of the convolution
come each head's value, and for each group of heads a key, by which values are written to their states, and a query, by which
these are read. The gate lets a part of what was read through, and a norm follows, or stands before it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from glassformer.blueprints import config as shared
from glassformer.blueprints.blueprint import Builder, Value
from glassformer.blueprints.bounds import BOUNDS, MAX_KERNEL, SIZE, Bounds
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief

ATTENTION, STATE = "full_attention", "linear_attention"  # what a layer may be, in files
INFINITY = {"__float__": "Infinity"}  # as files have it: JSON has no word for it
FORMER_KINDS = {"attention": ATTENTION, "mamba": STATE}  # as older files have them


@dataclass(frozen=True, kw_only=True)
class StateSpace:
    """The sizes of such a layer, and what differs from family to family."""

    heads: int
    head_size: int
    groups: int  # of heads that share a query and a key
    key_size: int
    kernel: int  # tokens that the convolution reads
    activation: str  # of the convolution
    eps: float
    bias: bool  # of the first projection
    conv_bias: bool
    output_bias: bool
    least_step: float = 0.0
    most_step: float = math.inf
    norm: bool = True
    norm_groups: int = 1  # parts that are normed by themselves
    norm_first: bool = False  # whether the norm stands before the gate
    multipliers: Sequence[float] = (1.0,) * 5  # of what the first projection makes: gates, values, keys, queries, steps

    @property
    def inner(self) -> int:
        """The numbers of all heads' values."""
        return self.heads * self.head_size

    @property
    def convolved(self) -> int:
        """The numbers that go through the convolution."""
        return self.inner + 2 * self.groups * self.key_size


@dataclass(kw_only=True)
class Config(shared.Config):
    """What is checked in the config of every family with such layers. A mixin, put after the family's own."""

    state_fields: ClassVar[Mapping[str, str]]  # of a `StateSpace`: which of the config's fields has it
    state_bounds: ClassVar[dict[str, Bounds]] = {
        **BOUNDS,
        **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state", "expand", "mamba_expand"), SIZE),
        **dict.fromkeys(("mamba_num_heads", "mamba_head_dim", "mamba_n_heads", "mamba_d_head", "mamba_d_ssm"), SIZE),
        **dict.fromkeys(("n_groups", "mamba_n_groups"), SIZE),
        **dict.fromkeys(("conv_kernel", "mamba_d_conv"), Bounds(1, MAX_KERNEL)),
        **dict.fromkeys(("time_step_min", "time_step_max", "time_step_floor"), Bounds(0, 1e6)),
    }

    time_step_limit: list[float] | tuple[float, ...] = (0.0, math.inf)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        limits = raw.get("time_step_limit")
        if isinstance(limits, list | tuple):
            raw = {**raw, "time_step_limit": tuple(math.inf if limit == INFINITY else limit for limit in limits)}
        elif limits is None:
            raw = {name: value for name, value in raw.items() if name != "time_step_limit"}
        return super().prepare(raw)

    def to_dict(self) -> dict[str, Any]:
        limits = [INFINITY if limit == math.inf else limit for limit in self.time_step_limit]
        return super().to_dict() | {"time_step_limit": limits}

    @property
    def state_space(self) -> StateSpace:
        least, most = self.time_step_limit
        own = {name: getattr(self, field) for name, field in self.state_fields.items()}
        return StateSpace(**{"least_step": least, "most_step": most, **own})

    def check_states(self, inner: int | None = None) -> None:
        """Refuse heads that cannot be grouped, or are not as wide together as they must be: `inner`."""
        self._check_limits()
        s, (heads, size, groups) = self.state_space, (self.state_fields[name] for name in ("heads", "head_size", "groups"))
        if s.heads % s.groups:
            raise ConfigError(
                f"config field {self.own_name(groups)!r} is {s.groups}; it must divide the {s.heads} heads that keep a "
                f"state ({self.own_name(heads)!r})."
            )
        if inner is not None and s.inner != inner:
            raise ConfigError(
                f"config field {self.own_name(size)!r} is {s.head_size}, but {s.heads} heads ({self.own_name(heads)!r}) "
                f"together must have {inner} numbers."
            )

    def _check_limits(self) -> None:
        limits = self.time_step_limit
        if len(limits) != 2 or not 0 <= limits[0] <= limits[1]:  # which no NaN is either
            raise ConfigError(
                f"config field 'time_step_limit' is {brief(list(limits))}; it must be the least and the most that a time "
                "step may be, such as [0.0, Infinity]."
            )


@dataclass(kw_only=True)
class HybridConfig(Config):
    """The fields of families that have such layers beside attention, by the names that these have in common."""

    state_fields = {
        "heads": "mamba_n_heads", "head_size": "mamba_d_head", "groups": "mamba_n_groups", "key_size": "mamba_d_state",
        "kernel": "mamba_d_conv", "activation": "hidden_act", "eps": "rms_norm_eps", "bias": "mamba_proj_bias",
        "conv_bias": "mamba_conv_bias", "output_bias": "mamba_proj_bias",
    }  # fmt: skip

    mamba_n_heads: int = 128
    mamba_d_head: int | str = "auto"  # which makes all heads together as wide as they must be
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.mamba_d_head, str):
            if self.mamba_d_head != "auto":
                raise ConfigError(f"config field 'mamba_d_head' is {brief(self.mamba_d_head)}; it must be int, or 'auto'.")
            object.__setattr__(self, "mamba_d_head", max(1, self.state_columns // self.mamba_n_heads))

    @property
    def state_columns(self) -> int:
        """How wide all heads that keep a state are together."""
        return self.mamba_expand * self.hidden_size


def mixer(b: Builder, s: StateSpace, h: Value, module: str, scale: float = 1.0, site_prefix: str = "attention") -> Value:
    """Such a layer: of a block's normed stream to its update; `scale`: of that; `site_prefix`: how its sites begin."""
    heads, inner, keys = s.heads, s.inner, s.groups * s.key_size
    both = b.linear(h, f"{module}.in_proj", inner + s.convolved + heads, s.bias)
    of_gate, of_value, of_key, of_query, of_step = s.multipliers
    gate = b.columns(both, module, (inner, 0, inner, 1), scale=of_gate)
    if of_value == of_key == of_query:
        mixed = b.columns(both, module, (s.convolved, inner, s.convolved, 1), scale=of_value)
    else:
        ends = [(inner, inner, of_value), (keys, 2 * inner, of_key), (keys, 2 * inner + keys, of_query)]
        mixed = b.join([b.columns(both, module, (size, at, size, 1), scale=by) for size, at, by in ends], module)
    step = b.columns(both, module, (heads, inner + s.convolved, heads, 1), scale=of_step)
    mixed = b.causal_conv(mixed, f"{module}.conv1d", s.kernel, s.activation, s.conv_bias)
    key, query = (
        b.heads_at(mixed, module, first, s.groups, s.key_size, site=f"{site_prefix}.{name}")
        for name, first in (("key", inner), ("query", inner + keys))
    )
    value = b.heads_at(mixed, module, 0, heads, s.head_size, site=f"{site_prefix}.value")
    write = b.time_step(step, f"{module}.dt_bias", s.least_step, s.most_step, site=f"{site_prefix}.write")
    decay = b.decay(write, f"{module}.A_log", f"{site_prefix}.decay")
    h = b.recur(query, key, value, decay, write, module, delta=False, skip=f"{module}.D", site_prefix=site_prefix)
    norm: Any = {"eps": s.eps, "groups": s.norm_groups}
    if s.norm and s.norm_first:
        h = b.norm(h, f"{module}.norm", **norm)
    h = b.gated(gate, h, "silu", module)
    if s.norm and not s.norm_first:
        h = b.norm(h, f"{module}.norm", **norm)
    return b.linear(h, f"{module}.out_proj", b.config.hidden_size, s.output_bias, site=f"{site_prefix}.update", scale=scale)
