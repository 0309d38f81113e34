"""A text whose words have tags: out of a row with tokens and tags, or with a text and the places of its entities.

{"tokens": ["Ada", "lived", "in", "London"], "tags": ["B-PER", "O", "O", "B-LOC"]}
{"text": "Ada lived in London", "spans": [{"start": 0, "end": 3, "label": "PER"}, …]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from glassformer.ground.errors import InputError
from glassformer.ground.typecheck import brief
from glassformer.training.labels import label_name
from glassformer.training.measures import OUTSIDE
from glassformer.training.rows import SPANS, TAGS, TEXT, TOKENS, Row

WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class TaggedText:
    text: str
    words: Sequence[tuple[int, int]]  # where each begins and ends in the text
    tags: Sequence[Any]  # one for each word
    place: str


def read_tagged_text(row: Row) -> TaggedText:
    return _from_spans(row) if row.has(SPANS) and not row.has(TOKENS) else _from_tokens(row)


def _from_tokens(row: Row) -> TaggedText:
    """Words are joined by spaces, as they would stand in a text."""
    tokens, tags = row.items(TOKENS), row.items(TAGS)
    if len(tokens) != len(tags):
        raise InputError(f"{row.place}: has {len(tokens)} tokens and {len(tags)} tags. Give each token one.")
    words, at = [], 0
    for number, token in enumerate(tokens):
        if not isinstance(token, str) or not token.strip():
            raise InputError(f"{row.place}: token {number} is {brief(token)}; it must be a text that is not empty.")
        words.append((at, at + len(token)))
        at += len(token) + 1
    text = Row({TEXT[0]: " ".join(tokens)}, row.place).text(TEXT)
    return TaggedText(text, words, tags, row.place)


def _from_spans(row: Row) -> TaggedText:
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
        tags += [OUTSIDE] * len(outside) + [f"{'I' if number else 'B'}-{label}" for number in range(len(inside))]
        before = end
    return TaggedText(text, words, tags, row.place)


def _span(span: Any, text: str, place: str) -> tuple[int, int, str]:
    if not isinstance(span, Mapping) or not {"start", "end", "label"} <= span.keys():
        raise InputError(f"{place}: a span is {brief(span)}; it must have 'start', 'end' and 'label'.")
    start, end = span["start"], span["end"]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (start, end))
    if not whole or not 0 <= start < end <= len(text) or not WORD.search(text, start, end):
        raise InputError(
            f"{place}: a span goes from {brief(start)} to {brief(end)}; it must hold words of the text, which has "
            f"{len(text)} characters."
        )
    return start, end, label_name(span["label"], place)
