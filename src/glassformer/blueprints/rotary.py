"""What configs of families with RoPE have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from glassformer.blueprints import config as shared
from glassformer.blueprints.rope import Rope


@dataclass(kw_only=True)
class Config(shared.Config):
    default_theta: ClassVar[float] = 10_000.0  # RoPE's base, where a file has none

    intermediate_size: int
    num_attention_heads: int
    hidden_act: str
    attention_dropout: float = 0.0
    rope: Rope = field(default_factory=Rope)

    @classmethod
    def prepare(cls, raw: dict[str, Any]) -> dict[str, Any]:
        raw = super().prepare(raw)
        rope = Rope.read(raw, cls.default_theta)
        for spelling in ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"):
            raw.pop(spelling, None)
        return raw | {"rope": rope}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_activation("hidden_act")

    @property
    def ropes(self) -> Mapping[str, Rope]:
        return {"rotary_emb": self.rope}

    def window(self, layer: int) -> int | None:
        """How many tokens back a layer looks; None: to the beginning."""
        return None
