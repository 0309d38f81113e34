"""RoPE's frequencies: how fast each pair of a head's dimensions turns with the position.

`default` is RoFormer's geometric ladder (https://arxiv.org/abs/2104.09864); `llama3` slows the low frequencies down
for longer contexts (Llama 3.1). Pure numbers: the layers and the native engines take them from here alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.errors import ConfigError, nearest

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
KINDS: Mapping[str, tuple[str, ...]] = {"default": (), "llama3": LLAMA3}  # kind: the numbers it needs


@dataclass(frozen=True)
class Rope:
    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    @classmethod
    def read(cls, raw: Mapping[str, Any], default_theta: float = 10000.0) -> Rope:
        """From a config: `rope_parameters` (new files), or `rope_theta` and `rope_scaling` (older ones, which win)."""
        given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        if not isinstance(given, Mapping):
            raise ConfigError(f"config field 'rope_parameters' is {given!r}; it must be an object.")
        new = raw.get("rope_parameters")
        fallback = new.get("rope_theta", default_theta) if isinstance(new, Mapping) else default_theta
        theta = _number(given.get("rope_theta", raw.get("rope_theta", fallback)), "rope_theta")
        kind = given.get("rope_type", given.get("type", "default"))
        if kind == "divisors":
            return _from_divisors(theta, given.get("divisors"))
        if not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError(
                f"config field 'rope_type' is {kind!r}, which is not known.{nearest(str(kind), KINDS)} "
                f"Known: {', '.join(KINDS)}."
            )
        numbers = {name: _number(given.get(name), name) for name in KINDS[kind]}
        if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
            raise ConfigError("config field 'low_freq_factor' must be below 'high_freq_factor'.")
        return cls(kind, theta, **numbers)  # type: ignore[arg-type]

    def raw(self) -> dict[str, Any]:
        """As `rope_parameters` in a config."""
        return {"rope_type": self.kind, "rope_theta": self.theta, **{name: getattr(self, name) for name in KINDS[self.kind]}}

    def frequencies(self, size: int) -> npt.NDArray[np.float32]:
        """Turns (in radians per position) of the size/2 pairs of a head."""
        plain = self.theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
        return (plain / self._divisors(plain)).astype(np.float32)

    def _divisors(self, plain: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        if self.kind == "default":
            return np.ones_like(plain)
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)  # in the original context
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)  # 1: a fast pair, as it was; 0: a slow one, slowed by the factor
        return 1.0 / (kept + (1.0 - kept) / self.factor)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise ConfigError(f"config field {name!r} is {value!r}; RoPE needs a positive number there.")
    return value


def _from_divisors(theta: float, divisors: Any) -> Rope:
    """The rule behind a file that only says by what each frequency is divided (GGUF of Llama 3.1 and 3.2)."""
    if not isinstance(divisors, list) or not divisors or not all(isinstance(one, float) for one in divisors):
        raise ConfigError(f"config field 'divisors' is {divisors!r}; it must be a list of numbers.")
    plain = Rope(theta=theta)
    size = 2 * len(divisors)
    ladder = plain.theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    for factor in (8.0, 32.0):
        guess = replace(plain, kind="llama3", factor=factor)
        if np.allclose(guess._divisors(ladder), divisors, rtol=1e-3):
            return guess
    raise ConfigError("the file's RoPE divisors ('rope_freqs.weight') follow no known rule.")
