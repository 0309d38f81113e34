"""The words of a text as units that can be taken away: left out, or exchanged for others that could stand there.

A word is taken with all of its places at once, in the prompt and in what was written so far: an answer that repeats "France"
would otherwise go on from its own copy. What a chat template puts around the messages is one unit of its own.

Shapes: logits (vocabulary,).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from glassformer.see.activations import Activations
from glassformer.see.tokens import Token, token_text
from glassformer.see.view import Floats
from glassformer.text import Tokenizer

Origin: TypeAlias = Literal["prompt", "answer", "template", "pair"]  # the last: the second of two texts
MAX_WORDS = 64  # of a text, that are taken away one by one
LIKELY = 200  # tokens that the model expects most in a word's place, among which exchanges are looked for
WHOLE = 3  # letters: a shorter token is rather a piece of a word
STEM = 4  # characters: a token that shares as many is another form of the same word


@dataclass(frozen=True)
class Word:
    """A word with all of its places."""

    text: str
    origin: Origin
    places: tuple[tuple[int, ...], ...]  # the positions of its tokens, each time that it stands in the text

    @property
    def first(self) -> int:
        return self.places[0][0]

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(position for place in self.places for position in place)


def words_of(reading: Activations, end: int, contents: Sequence[str] | None = None) -> list[Word]:
    """The words before a position, in their order; what stands outside of the prompt's contents is the template.

    `contents`: the texts of a prompt's messages; None: all of the prompt is text.
    """
    tokens = reading.tokens[:end]
    texts = [token.text for token in tokens]
    origins = token_origins(tokens, reading.prompt_length, contents, reading.second)
    found: dict[tuple[bool, str], tuple[Origin, list[tuple[int, ...]]]] = {}
    template = tuple(position for position, origin in enumerate(origins) if origin == "template")
    for place in _spelled(texts, origins):
        key = origins[place[0]] == "pair", _spelling(texts, place).casefold()
        found.setdefault(key, (origins[place[0]], []))[1].append(place)
    words = [Word(_spelling(texts, places[0]), origin, tuple(places)) for origin, places in found.values()]
    around = "the special tokens" if contents is None else "the chat template"
    return [*words, Word(around, "template", (template,))] if template else words


def _spelling(texts: Sequence[str], place: Sequence[int]) -> str:
    return "".join(texts[position] for position in place).strip()


def token_origins(
    tokens: Sequence[Token], prompt_length: int, contents: Sequence[str] | None, second: int | None
) -> list[Origin]:
    """Where each token comes from."""
    origins: list[Origin] = ["prompt" if index < prompt_length else "answer" for index in range(len(tokens))]
    if second is not None:
        origins[second:] = ["pair"] * len(origins[second:])
    if contents is not None:
        texts = [token.text for token in tokens[:prompt_length]]
        starts = np.cumsum([0, *map(len, texts)])
        spans = _spans("".join(texts), contents)
        for position in range(len(texts)):
            begin, stop = starts[position], starts[position + 1]
            if spans and not any(begin < last and first < stop for first, last in spans):
                origins[position] = "template"
    return ["template" if token.special else origin for token, origin in zip(tokens, origins, strict=True)]


def _spans(whole: str, contents: Sequence[str]) -> list[tuple[int, int]]:
    """Where each text stands in the whole one, as far as it does."""
    spans: list[tuple[int, int]] = []
    for content in map(str.strip, contents):
        start = whole.find(content, spans[-1][1] if spans else 0)
        spans += [(start, start + len(content))] if start >= 0 else []
    return spans


def spelled_places(texts: Sequence[str]) -> Iterable[tuple[int, ...]]:
    """The positions of each word of a text that is all of one origin."""
    return _spelled(texts, ["answer"] * len(texts))


def _spelled(texts: Sequence[str], origins: Sequence[Origin]) -> Iterable[tuple[int, ...]]:
    """The positions of each word: tokens that are spelled together, without punctuation and blanks."""
    word: list[int] = []
    for position, text in enumerate(texts):
        joins = (
            bool(word) and text[:1].isalnum() and texts[word[-1]][-1:].isalnum() and origins[word[-1]] == origins[position]
        )
        if word and not joins:
            yield tuple(word)
            word = []
        if origins[position] != "template" and any(map(str.isalnum, text)):
            word.append(position)
    if word:
        yield tuple(word)


def exchanges(word: Word, likely: Sequence[int], reading: Activations, ids: Sequence[int], count: int) -> list[int]:
    """Tokens that could stand in a word's place: of the likely ones those that are written like it, the nearest first.

    Near are tokens of which the model's embeddings are; a word of several tokens has none, and takes them as they come.
    """
    tokenizer = reading.model.tokenizer
    fitting: dict[str, int] = {}  # by their spelling
    for token in likely:
        text = token_text(tokenizer, token)
        if alike(text, word.text) and not _same_stem(text, word.text):
            fitting.setdefault(text.strip().casefold(), token)
    own = _as_one_token(word, ids, tokenizer)
    tokens = list(fitting.values())
    if own is None or not tokens:
        return tokens[:count]
    unit = embeddings(reading, [own, *tokens])
    nearest = np.argsort(-(unit[1:] @ unit[0]), kind="stable")
    return [tokens[index] for index in nearest[:count]]


def embeddings(reading: Activations, tokens: Sequence[int]) -> Floats:
    """The vectors of some tokens, each of length one."""
    table = reading.model.weight(reading.model.blueprint.token_table.name, list(tokens))
    assert table is not None
    table = table.reshape(len(table), -1)
    unit: Floats = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-9)
    return unit


def alike(text: str, other: str) -> bool:
    """Whether a token is written like another one: a whole word, a name, or a number.

    >>> alike(" Rome", "Paris"), alike(" the", "Paris"), alike("L", "Paris"), alike("12", "7")
    (True, False, False, True)
    """
    spelled, model = text.strip(), other.strip()
    whole = spelled.isalnum() and len(spelled) >= min(WHOLE, len(model))
    return whole and spelled[:1].isupper() == model[:1].isupper() and spelled.isdigit() == model.isdigit()


def _same_stem(text: str, word: str) -> bool:
    return text.strip().casefold().startswith(word.casefold()[:STEM])


def _as_one_token(word: Word, ids: Sequence[int], tokenizer: Tokenizer) -> int | None:
    """A word as one token: as it stands in the text, or as it does after a blank."""
    first, *more = word.places[0]
    if first and not more:
        return ids[first]
    spelled = tokenizer.encode(f" {word.text}", add_special_tokens=False)
    return spelled[0] if len(spelled) == 1 else None if more else ids[first]


def without(ids: Sequence[int], words: Iterable[Word]) -> tuple[int, ...]:
    """A text's ids without some words."""
    gone = {position for word in words for position in word.positions}
    return tuple(token for position, token in enumerate(ids) if position not in gone)


def exchanged(ids: Sequence[int], instead: Mapping[Word, int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """A text's ids with other tokens in all places of some words, with a blank before them where the word has one."""
    starts = {place[0]: token for word, token in instead.items() for place in word.places}
    gone = {position for word in instead for position in word.positions}
    result: list[int] = []
    for position, old in enumerate(ids):
        if position in starts:
            result += _spelled_like(starts[position], token_text(tokenizer, old), tokenizer)
        elif position not in gone:
            result.append(old)
    return tuple(result)


def _spelled_like(token: int, old: str, tokenizer: Tokenizer) -> list[int]:
    """A token, or what its text is after a blank or without one."""
    text, blank = token_text(tokenizer, token), old[:1].isspace()
    if text[:1].isspace() == blank:
        return [token]
    return tokenizer.encode(f"{' ' if blank else ''}{text.strip()}", add_special_tokens=False) or [token]
