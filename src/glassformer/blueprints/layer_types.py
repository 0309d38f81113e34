"""Layers of two kinds: some look to the beginning, others back over a sliding window, perhaps with a RoPE of their own, or
something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from glassformer.blueprints import llama
from glassformer.ground.errors import ConfigError
from glassformer.ground.typecheck import brief
from glassformer.ops.rope import Rope

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(kw_only=True)
class TwoKindsConfig(llama.Config):
    """Layers that look to the beginning, and others between them."""

    default_period: ClassVar[int]  # every n-th layer looks to the beginning, where a file lists no kinds
    period_names: ClassVar[tuple[str, ...]] = ()  # by which files have another n
    other_kind: ClassVar[str]  # what the layers between them are

    layer_types: list[str] | None = None

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        layers = raw.get("num_hidden_layers")
        period = next((raw[name] for name in cls.period_names if raw.get(name)), cls.default_period)
        raw = {name: value for name, value in raw.items() if name not in cls.period_names[:1]}
        if raw.get("layer_types") is None and isinstance(layers, int) and isinstance(period, int):
            raw["layer_types"] = [FULL if (layer + 1) % period == 0 else cls.other_kind for layer in range(layers)]
        return super().prepare(raw)

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = self.layer_types or []
        if len(kinds) != self.num_hidden_layers or not set(kinds) <= {FULL, self.other_kind}:
            raise ConfigError(
                f"config field 'layer_types' must name one of {self.other_kind}, {FULL} for each of the "
                f"{self.num_hidden_layers} layers, not {brief(kinds)}."
            )

    def is_full(self, layer: int) -> bool:
        """Whether a layer looks to the beginning."""
        return (self.layer_types or [])[layer] == FULL


@dataclass(kw_only=True)
class Config(TwoKindsConfig):
    """The others look back over a window."""

    period_names = ("sliding_window_pattern", "_sliding_window_pattern")
    other_kind = SLIDING

    sliding_window: int | None = 4096

    def is_local(self, layer: int) -> bool:
        return not self.is_full(layer)

    def window(self, layer: int) -> int | None:
        return self.sliding_window if self.is_local(layer) else None


def object_field(value: Any, name: str) -> Mapping[str, Any]:
    """A field that has fields of its own, refused if it is no object; empty where a file has none."""
    if not isinstance(value or {}, Mapping):
        raise ConfigError(f"config field {name!r} is {brief(value)}; it must be an object.")
    return value or {}


@dataclass(kw_only=True)
class TwoRopesConfig(Config):
    """The layers with a window have a RoPE of their own. A mixin, put after a family's own config, whose defaults win."""

    local_theta: ClassVar[float]  # its base, where a file has none

    local_rope: Rope = field(default_factory=Rope)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        local_theta = raw.pop("rope_local_base_freq", cls.local_theta)
        ropes, scaling = (object_field(raw.pop(name, None), name) for name in ("rope_parameters", "rope_scaling"))
        nested = FULL in ropes or SLIDING in ropes  # what stands flat beside them is not read
        full = object_field(ropes.get(FULL), FULL) if nested else ropes
        local = Rope.read({**raw, "rope_parameters": ropes.get(SLIDING), "rope_theta": local_theta})
        return super().prepare({**raw, "rope_parameters": {**full, **scaling}}) | {"local_rope": local}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.local_rope.check_head_size(self.head_dim)

    def rope_of(self, layer: int) -> Rope:
        return self.local_rope if self.is_local(layer) else self.rope

    def rope_name(self, layer: int) -> str:
        """The name of a layer's rotary tables."""
        return "local" if self.is_local(layer) else "default"

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": self.rope, "rotary_emb_local": self.local_rope}

    def to_dict(self) -> dict[str, Any]:
        raw = super().to_dict()
        del raw["local_rope"]
        return raw | {"rope_parameters": {SLIDING: self.local_rope.raw(), FULL: self.rope.raw()}}
