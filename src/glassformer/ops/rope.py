"""RoPE's frequencies: how fast each pair of a head's dimensions rotates with the position.

    default   RoFormer's geometric series (https://arxiv.org/abs/2104.09864)
    linear    all pairs slowed by a factor: positions squeezed into the trained range
    dynamic   the base grows with the length, once that exceeds the trained one
    yarn      fast pairs as they were, slow pairs slowed, a ramp between (https://arxiv.org/abs/2309.00071)
    llama3    the same idea with a ramp over frequencies (Llama 3.1)
    proportional  the fastest pairs of a whole head, and the others not at all (Gemma 4)
    longrope  each pair slowed by a factor of its own: one list up to the trained length, another beyond
              (https://arxiv.org/abs/2402.13753)

Pure numbers, for the layers and the native engines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import ConfigError, did_you_mean
from glassformer.ground.typecheck import brief

MOST = 1e12  # of every number here
Floats = npt.NDArray[np.float64]

KINDS: Mapping[str, tuple[str, ...]] = {  # kind: the numbers that it needs
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("factor", "original_max_position_embeddings"),
    "proportional": (),
}
OPTIONAL: Mapping[str, tuple[str, ...]] = {
    "yarn": ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    "longrope": ("attention_factor",),
    "proportional": ("factor",),
}
FACTOR_LISTS = ("short_factor", "long_factor")  # of longrope: a number for each pair
FORMER_KINDS = {"su": "longrope"}


@dataclass(frozen=True)
class Rope:
    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    partial_rotary_factor: float = 1.0  # the share of a head that is rotated: its first numbers
    interleaved: bool = False  # whether the numbers of a pair are neighbors, and not half of what is rotated apart

    @classmethod
    def read(cls, raw: Mapping[str, Any], default_theta: float = 10000.0) -> Rope:
        """From a config: `rope_parameters` (new files), or `rope_theta` and `rope_scaling` (older ones, which win)."""
        parameters = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
        if not isinstance(parameters, Mapping):
            raise ConfigError(f"config field 'rope_parameters' is {brief(parameters)}; it must be an object.")
        new = raw.get("rope_parameters")
        fallback = new.get("rope_theta", default_theta) if isinstance(new, Mapping) else default_theta
        theta = number(parameters.get("rope_theta", raw.get("rope_theta", fallback)), "rope_theta")
        if theta <= 1:
            raise ConfigError(f"config field 'rope_theta' is {theta!r}; it must be above 1.")
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        kind = FORMER_KINDS.get(kind, kind) if isinstance(kind, str) else kind
        if kind == "divisors":
            return _from_divisors(theta, parameters.get("divisors"))
        if not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError(
                f"config field 'rope_type' is {kind!r}, which is not known.{did_you_mean(str(kind), KINDS)} "
                f"Known: {', '.join(KINDS)}."
            )
        share = _first(parameters.get("partial_rotary_factor"), raw.get("partial_rotary_factor"), 1.0)
        if number(share, "partial_rotary_factor") > 1:
            raise ConfigError(f"config field 'partial_rotary_factor' is {share!r}; it is a share of a head, at most 1.")
        longest = raw.get("max_position_embeddings")
        trained = "original_max_position_embeddings"  # beside the object it wins over what is in it
        lengths = {"max_position_embeddings": longest, trained: _first(raw.get(trained), parameters.get(trained), longest)}
        parameters = {**parameters, **{name: number(lengths[name], name) for name in KINDS[kind] if name in lengths}}
        if kind == "longrope" and parameters.get("factor") is None:
            parameters["factor"] = number(longest, "max_position_embeddings") / parameters[trained]
        values = {name: number(parameters.get(name), name) for name in KINDS[kind]}
        for name in OPTIONAL.get(kind, ()):
            if parameters.get(name) is not None:
                values[name] = number(parameters[name], name)
        if kind == "llama3" and values["low_freq_factor"] > values["high_freq_factor"]:
            raise ConfigError("config field 'low_freq_factor' must not be above 'high_freq_factor'.")
        lists = {name: _numbers(parameters.get(name), name) for name in FACTOR_LISTS} if kind == "longrope" else {}
        truncate = parameters.get("truncate", True) is not False
        return cls(kind, theta, **values, **lists, truncate=truncate, partial_rotary_factor=share)  # type: ignore[arg-type]

    def check_head_size(self, size: int) -> None:
        """Refuse a share of a head that is no pairs, and lists of factors that are not for heads of this size."""
        rotated = self.rotary_size(size)
        if rotated < 2 or rotated % 2:
            raise ConfigError(
                f"config field 'partial_rotary_factor' is {self.partial_rotary_factor:g}: {rotated} of a head's {size} "
                "numbers, but RoPE rotates pairs."
            )
        for name in FACTOR_LISTS if self.kind == "longrope" else ():
            if len(getattr(self, name)) != rotated // 2:
                raise ConfigError(
                    f"config field {name!r} lists {len(getattr(self, name))} numbers; RoPE needs one for each of the "
                    f"{rotated // 2} pairs of a head."
                )

    def rotary_size(self, size: int) -> int:
        """How many numbers of a head of this size are rotated."""
        return size if self.kind == "proportional" else int(size * self.partial_rotary_factor)

    def pairs(self, size: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Where the first numbers of a head's pairs stand, and where the second."""
        rotated = np.arange(self.rotary_size(size))
        return (rotated[::2], rotated[1::2]) if self.interleaved else tuple(np.split(rotated, 2))  # type: ignore[return-value]

    def raw(self) -> dict[str, Any]:
        """As `rope_parameters` in a config."""
        needed = {name: getattr(self, name) for name in KINDS[self.kind] if name != "max_position_embeddings"}
        optional = {f.name: getattr(self, f.name) for f in fields(self) if f.name in OPTIONAL.get(self.kind, ())}
        present = {name: value for name, value in optional.items() if value is not None}
        return {
            "rope_type": self.kind,
            "rope_theta": self.theta,
            **needed,
            **present,
            **({name: list(getattr(self, name)) for name in FACTOR_LISTS} if self.kind == "longrope" else {}),
            **({} if self.truncate else {"truncate": False}),
            **({} if self.partial_rotary_factor == 1 else {"partial_rotary_factor": self.partial_rotary_factor}),
        }

    @property
    def scale(self) -> float:
        """What cosines and sines are multiplied by; only yarn and longrope sharpen attention this way."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "longrope":
            stretched = self.factor > 1 and self.original_max_position_embeddings > 1
            return (
                math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings)) if stretched else 1.0
            )
        if self.mscale and self.mscale_all_dim:
            return self.sharpness(self.mscale) / self.sharpness(self.mscale_all_dim)
        return self.sharpness(1.0)

    def sharpness(self, weight: float) -> float:
        """How much sharper attention is made for a text that is stretched."""
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    @property
    def depends_on_length(self) -> bool:
        """Whether a longer sequence has other frequencies."""
        return self.kind == "dynamic" or self.switch is not None

    @property
    def switch(self) -> int | None:
        """The longest sequence with longrope's short factors: one that grows beyond it is read anew with the long ones."""
        if self.kind != "longrope" or self.short_factor == self.long_factor:
            return None
        return int(self.original_max_position_embeddings)

    def frequency_length(self, length: int) -> int:
        """The least length of a sequence that has the frequencies of one of `length` tokens."""
        if self.switch is not None:
            return self.switch + 1 if length > self.switch else 0
        return length if self.kind == "dynamic" and length > self.max_position_embeddings else 0

    def same_frequencies(self, length: int) -> int | None:
        """How many tokens can follow `length` ones without other frequencies; None: any count."""
        if self.switch is not None:
            return self.switch - length if length <= self.switch else None
        return max(0, int(self.max_position_embeddings) - length) if self.kind == "dynamic" else None

    def frequencies(self, size: int, length: int = 0) -> npt.NDArray[np.float32]:
        """Radians per position of each pair of a head of `size` numbers, for a sequence of `length` tokens."""
        theta, size = self.theta, self.rotary_size(size)
        if self.kind == "dynamic" and length > self.max_position_embeddings:
            stretched = self.factor * length / self.max_position_embeddings - (self.factor - 1)
            theta *= stretched ** (size / (size - 2))
        plain = theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
        return (plain / self._divisors(plain, length)).astype(np.float32)

    def _divisors(self, plain: Floats, length: int = 0) -> Floats:
        """What each frequency is divided by."""
        if self.kind == "longrope":
            return np.array(self.long_factor if length > self.original_max_position_embeddings else self.short_factor)
        if self.kind == "proportional":  # those that are not turned are slowed down to nothing
            turned = int(self.partial_rotary_factor * 2 * plain.size // 2)
            return np.where(np.arange(plain.size) < turned, self.factor, np.inf)
        if self.kind == "linear":
            return np.full_like(plain, self.factor)
        if self.kind == "yarn":
            return self._blend(1.0 - self._ramp(2 * plain.size))
        if self.kind == "llama3":
            rotations = self.original_max_position_embeddings * plain / (2 * math.pi)  # in the original context
            width = max(self.high_freq_factor - self.low_freq_factor, 1e-9)  # none: a step
            return self._blend((rotations - self.low_freq_factor) / width)
        return np.ones_like(plain)

    def _blend(self, unslowed: Floats) -> Floats:
        """1: a fast pair, as it was; 0: a slow one, slowed by the factor."""
        unslowed = np.clip(unslowed, 0.0, 1.0)
        return 1.0 / (unslowed + (1.0 - unslowed) / self.factor)

    def _ramp(self, size: int) -> Floats:
        """Yarn's ramp over the pairs, from those that rotate `beta_fast` times in the original context to `beta_slow`."""

        def pair(rotations: float) -> float:
            wavelength = self.original_max_position_embeddings / (rotations * 2 * math.pi)
            return size * math.log(wavelength) / (2 * math.log(self.theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        return np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0.0, 1.0)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MOST:
        raise ConfigError(f"config field {name!r} is {brief(value)}; RoPE needs a positive number there.")
    return value


def _numbers(values: Any, name: str) -> tuple[float, ...]:
    if not isinstance(values, list | tuple):
        raise ConfigError(f"config field {name!r} is {brief(values)}; RoPE needs a list of numbers there.")
    return tuple(number(value, name) for value in values)


def _from_divisors(theta: float, divisors: Any) -> Rope:
    """The rule of a file that only lists what each frequency is divided by (GGUF of Llama 3.1, 3.2 and 4)."""
    if not isinstance(divisors, list) or not divisors or not all(isinstance(divisor, float) for divisor in divisors):
        raise ConfigError(f"config field 'divisors' is {brief(divisors)}; it must be a list of numbers.")
    plain = Rope(theta=theta)
    size = 2 * len(divisors)
    frequencies = plain.theta ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    for fast in (4.0, 1.0):  # of Llama 3, of Llama 4; the slowest is slowed by the whole factor
        guess = replace(plain, kind="llama3", factor=round(max(divisors), 3), high_freq_factor=fast)
        if np.allclose(guess._divisors(frequencies), divisors, rtol=1e-3):
            return guess
    raise ConfigError("the file's RoPE divisors ('rope_freqs.weight') follow no known rule.")
