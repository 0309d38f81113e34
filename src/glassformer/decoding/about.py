"""What is known of a setting beside its name, kind and default: what it does, its bounds, and what it needs."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, NamedTuple

from glassformer.typecheck import fits, words


class About(NamedTuple):
    text: str
    neutral: Any = None  # the value that changes nothing, beside None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    needs: str | None = None  # what must be in force for this to have an effect
    empty: bool = False  # whether an empty text or list says something too
    words: str | None = None  # its kind, for people, where the annotation does not say it
    passing: bool = False  # for one call only: not of the kind that files hold

    def fits(self, value: Any, hint: Any) -> bool:
        if not fits(value, hint):
            return False
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        if not math.isfinite(value):
            return False
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def expected(self, hint: Any, value: Any = 0) -> str:
        """What it must be instead of a value, in words."""
        if self.words is not None:
            return self.words
        limits = (("above", self.above), ("at least", self.least), ("below", self.below), ("at most", self.most))
        bounds = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
        if fits(0.5, hint):
            number = fits(value, float) and math.isfinite(value)
            return bounds if bounds and number else f"a number {bounds}".rstrip()
        if fits(1, hint) and not fits([1], hint):
            return f"a whole number of {bounds}"
        return words(hint).removesuffix(" or null")


def setting(default: Any, text: str, **more: Any) -> Any:
    """A field of GenerationConfig."""
    neutral = more.pop("neutral", None if isinstance(default, (list, dict, bool)) else default)
    return field(default=default, metadata={"about": About(text, neutral, **more)})
