"""What a line of the settings' table says: what a setting does, its bounds, what it needs, and the rule that it makes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from glassformer.decoding.rules import NamedRule, Rule, TextIds
from glassformer.ground.typecheck import is_finite, matches_type, type_words

INT_LIMIT = 2**31 - 1  # of every whole number, unless its line has another bound
FLOAT_LIMIT = 1e9  # and of every other number: scores are 32-bit floats

RuleMaker: TypeAlias = Callable[[Any, TextIds], "Rule | list[NamedRule]"]  # of the settings and their texts' ids
TokenLister: TypeAlias = Callable[[Any, TextIds], Iterable[int]]


class SettingInfo(NamedTuple):
    summary: str
    neutral: Any = None  # the value that changes nothing, beside None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    needs: str | None = None  # the setting without which this one has no effect
    or_needs: str | None = None  # another with which it has one too
    title: str = ""  # of a setting that others need: what it switches on
    example: object = None  # and a value that does so
    empty_counts: bool = False  # whether an empty text or list changes something too
    expects: str | None = None  # its type in words, where the annotation does not say it
    per_call: bool = False  # never in a file
    rule: RuleMaker | None = None  # what it does to the scores
    truncates: bool = False  # whether its rule only cuts candidates off, which mirostat does in its place
    token_ids: TokenLister | None = None  # the ids that it names, which must be in the vocabulary

    def fits(self, value: Any, hint: Any) -> bool:
        return matches_type(value, hint) and all(self._within_bounds(number) for number in _numbers(value))

    def _within_bounds(self, number: float) -> bool:
        limit = math.inf if self.below is not None else FLOAT_LIMIT if isinstance(number, float) else INT_LIMIT
        return (
            -limit <= number <= limit
            and (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
            and (self.below is None or number < self.below)
        )

    def expected(self, hint: Any, value: Any = 0) -> str:
        """What it must be instead of a value, in words."""
        if self.expects is not None:
            return self.expects
        limits = (("above", self.above), ("at least", self.least), ("below", self.below), ("at most", self._most(value)))
        bounds = " and ".join(f"{word} {limit:.10g}" for word, limit in limits if limit is not None)
        if matches_type(0.5, hint):
            number = matches_type(value, float) and is_finite(value)
            return bounds if bounds and number else f"a number {bounds}".rstrip()
        if matches_type(1, hint) and not matches_type([1], hint):
            return f"a whole number of {bounds}"
        return type_words(hint).removesuffix(" or null")

    def _most(self, value: Any) -> float | None:
        """The upper bound, where there is one or a value goes beyond what any number may be."""
        if self.most is not None or self.below is not None or not matches_type(value, float):
            return self.most
        limit = FLOAT_LIMIT if isinstance(value, float) else INT_LIMIT
        return limit if is_finite(value) and value > limit else None


def _numbers(value: Any) -> Iterator[int | float]:
    """The number that a value is, or the whole numbers that it lists: ids and steps."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from (number for number in _numbers(item) if isinstance(number, int))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def setting(
    default: Any, summary: str, *, rule: RuleMaker | None = None, token_ids: TokenLister | None = None, **more: Any
) -> Any:
    """A line of the table; `more` is as in SettingInfo. The neutral value is the default unless another is given."""
    neutral = more.pop("neutral", None if isinstance(default, (list, dict, bool)) else default)
    return field(default=default, metadata={"info": SettingInfo(summary, neutral, rule=rule, token_ids=token_ids, **more)})
