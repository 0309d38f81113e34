"""The labels of a classifier: which there are, and the index of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from glassformer.ground.errors import InputError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.text.inputs import refuse_lone_surrogates
from glassformer.training.measures import OUTSIDE
from glassformer.training.rows import SPANS, TAGS, TEXT, TOKENS, DataRow

MAX_LABELS = 1000  # more are hardly classes
NUMBER = re.compile(r"-?\d{1,18}")


@dataclass(frozen=True)
class Labels:
    names: tuple[str, ...]  # in the order of their indices

    @property
    def id2label(self) -> dict[int, str]:
        return dict(enumerate(self.names))

    @cached_property
    def _indices(self) -> Mapping[str, int]:
        return {name: index for index, name in enumerate(self.names)}

    def index(self, value: Any, place: str) -> int:
        """The index of a label, which is its name; or the index itself, where the names are no numbers."""
        name = label_name(value, place)
        if name in self._indices:
            return self._indices[name]
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


WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class TaggedText:
    text: str
    words: Sequence[tuple[int, int]]  # where each begins and ends in the text
    tags: Sequence[Any]  # one for each word
    place: str


def read_tagged_text(row: DataRow) -> TaggedText:
    return _from_spans(row) if row.has(SPANS) and not row.has(TOKENS) else _from_tokens(row)


def _from_tokens(row: DataRow) -> TaggedText:
    """Words are joined by spaces, as they would stand in a text."""
    tokens, tags = row.items(TOKENS), row.items(TAGS)
    if len(tokens) != len(tags):
        raise InputError(f"{row.place}: has {len(tokens)} tokens and {len(tags)} tags. Give each token one.")
    words, start = [], 0
    for index, token in enumerate(tokens):
        if not isinstance(token, str) or not token.strip():
            raise InputError(f"{row.place}: token {index} is {brief(token)}; it must be a text that is not empty.")
        words.append((start, start + len(token)))
        start += len(token) + 1
    text = DataRow({TEXT[0]: " ".join(tokens)}, row.place).text(TEXT)
    return TaggedText(text, words, tags, row.place)


def _from_spans(row: DataRow) -> TaggedText:
    """The words of a text, tagged B- and I- inside its spans and O outside."""
    text, spans = row.text(TEXT), row.get(SPANS)
    if not isinstance(spans, list):
        raise InputError(f"{row.place}: {SPANS[0]!r} is {brief(spans)}; it must be a list.")
    placed = sorted(_span(span, text, row.place) for span in spans)
    for (_, end, _), (start, _, _) in pairwise(placed):
        if start < end:
            raise InputError(f"{row.place}: two spans overlap at character {start}. A word can have one tag.")
    words: list[tuple[int, int]] = []
    tags: list[str] = []
    before = 0
    for start, end, label in [*placed, (len(text), len(text), "")]:
        outside = [match.span() for match in WORD.finditer(text, before, start)]
        inside = [match.span() for match in WORD.finditer(text, start, end)]
        words += outside + inside
        tags += [OUTSIDE] * len(outside) + [f"{'I' if index else 'B'}-{label}" for index in range(len(inside))]
        before = end
    return TaggedText(text, words, tags, row.place)


def _span(span: Any, text: str, place: str) -> tuple[int, int, str]:
    if not isinstance(span, Mapping) or not {"start", "end", "label"} <= span.keys():
        raise InputError(f"{place}: a span is {brief(span)}; it must have 'start', 'end' and 'label'.")
    start, end = span["start"], span["end"]
    whole = all(isinstance(edge, int) and not isinstance(edge, bool) for edge in (start, end))
    if not whole or not 0 <= start < end <= len(text) or not WORD.search(text, start, end):
        raise InputError(
            f"{place}: a span goes from {brief(start)} to {brief(end)}; it must hold words of the text, which has "
            f"{len(text)} characters."
        )
    return start, end, label_name(span["label"], place)
