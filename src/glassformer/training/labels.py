"""The labels of a classifier: which there are, and the number of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from glassformer.ground.errors import InputError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.text.inputs import refuse_lone_surrogates

MAX_LABELS = 1000  # more are hardly classes
NUMBER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True)
class Labels:
    names: tuple[str, ...]  # in the order of their numbers

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    def number(self, value: Any, place: str) -> int:
        """The number of a label, which is its name; or the number itself, where the names are no numbers."""
        name = label_name(value, place)
        if name in self._numbers:
            return self._numbers[name]
        if NUMBER.fullmatch(name) and not any(map(NUMBER.fullmatch, self.names)):
            if 0 <= int(name) < len(self.names):
                return int(name)
            raise InputError(f"{place}: the label {name} is out of range; there are {len(self.names)}, counted from 0.")
        known = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
        raise InputError(f"{place}: the label {brief(name)} is not known.{did_you_mean(name, self.names)} Known: {known}.")


def label_name(value: Any, place: str) -> str:
    """A label as text."""
    if isinstance(value, bool):
        return str(value).lower()
    name = str(value).strip() if isinstance(value, str | int) else ""
    if not name:
        raise InputError(f"{place}: the label is {brief(value)}; it must be a text or a whole number.")
    refuse_lone_surrogates(name, f"{place}: the label")
    return name


def collect_labels(values: Iterable[tuple[Any, str]], source: str, known: Sequence[str] = ()) -> Labels:
    """The labels of all rows: in their order, or in that of a model that knows them all.

    `values`: each label as its row has it, and the row's place. `source`: the file that they are from. `known`: the labels
    that the model has.
    """
    names: set[str] = set()
    for value, place in values:
        names.add(label_name(value, place))
        if len(names) > MAX_LABELS:
            raise InputError(
                f"{place}: is the first with more than {MAX_LABELS:,} different labels before it. Is it a label at all?"
            )
    if len(names) < 2:
        raise InputError(f"{source}: every row has the label {next(iter(names))!r}. Give rows of at least two labels.")
    if names <= set(known):
        return Labels(tuple(known))
    return Labels(tuple(sorted(names, key=int) if all(map(NUMBER.fullmatch, names)) else sorted(names)))
