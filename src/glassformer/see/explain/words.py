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
from glassformer.text import Tokenizer
from glassformer.text.streaming import shown_bytes

Origin: TypeAlias = Literal["prompt", "answer", "template"]
LIKELY = 200  # tokens that the model expects most in a word's place, among which exchanges are looked for
EXCHANGES = 3  # of a word
WHOLE = 3  # letters: a shorter token is rather a piece of a word
STEM = 4  # characters: a token that shares as many is another form of the same word


@dataclass(frozen=True)
class Word:
    """A word with all of its places."""

    text: str
    origin: Origin
    places: tuple[tuple[int, ...], ...]  # the positions of its tokens, each time that it stands in the text

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(position for place in self.places for position in place)


def words_of(reading: Activations, end: int, contents: Sequence[str] | None = None) -> list[Word]:
    """The words before a position, in their order; what stands outside of the prompt's contents is the template.

    `contents`: the texts of a prompt's messages; None: all of the prompt is text.
    """
    texts = [shown_bytes(reading.model.tokenizer.token_bytes(token.id)) for token in reading.tokens[:end]]
    origins = _origins(reading, texts, contents)
    found: dict[str, tuple[Origin, list[tuple[int, ...]]]] = {}
    template = tuple(position for position, origin in enumerate(origins) if origin == "template")
    for place in _spelled(texts, origins):
        text = "".join(texts[position] for position in place).strip()
        found.setdefault(text.casefold(), (origins[place[0]], []))[1].append(place)
    words = [Word(_first_text(texts, places), origin, tuple(places)) for origin, places in found.values()]
    return [*words, Word("the chat template", "template", (template,))] if template else words


def _first_text(texts: Sequence[str], places: Sequence[Sequence[int]]) -> str:
    return "".join(texts[position] for position in places[0]).strip()


def _origins(reading: Activations, texts: Sequence[str], contents: Sequence[str] | None) -> list[Origin]:
    """Where each token comes from."""
    prompt = reading.prompt_length
    origins: list[Origin] = ["template" if token.special else "prompt" for token in reading.tokens[: len(texts)]]
    if contents is not None:
        starts = np.cumsum([0, *map(len, texts[:prompt])])
        spans = _spans("".join(texts[:prompt]), contents)
        for position in range(min(prompt, len(texts))):
            begin, stop = starts[position], starts[position + 1]
            if spans and not any(begin < last and first < stop for first, last in spans):
                origins[position] = "template"
    return [*origins[:prompt], *("template" if o == "template" else "answer" for o in origins[prompt:])]


def _spans(whole: str, contents: Sequence[str]) -> list[tuple[int, int]]:
    """Where each text stands in the whole one, as far as it does."""
    spans: list[tuple[int, int]] = []
    for content in map(str.strip, contents):
        start = whole.find(content, spans[-1][1] if spans else 0)
        spans += [(start, start + len(content))] if start >= 0 else []
    return spans


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


def exchanges(word: Word, expected: Mapping[int, Sequence[int]], reading: Activations) -> list[int]:
    """Tokens that could stand in a word's place: likely there, written like it, and of those the nearest in meaning."""
    tokenizer, first = reading.model.tokenizer, word.places[0][0]
    original = token_text(tokenizer, reading.ids[first])
    fitting = [
        token
        for token in expected.get(first, ())
        if _could_stand_for(token_text(tokenizer, token), original, word.text) and token != reading.ids[first]
    ]
    table = reading.model.blueprint.ops[0].weights[0].name
    vectors = [reading.model.weight(table, token) for token in (reading.ids[first], *fitting)]
    origin, *others = (
        np.ravel(vector) / max(float(np.linalg.norm(vector)), 1e-9) for vector in vectors if vector is not None
    )
    nearest = sorted(zip((-float(origin @ other) for other in others), fitting, strict=True))
    return [token for _, token in nearest[:EXCHANGES]]


def _could_stand_for(text: str, original: str, word: str) -> bool:
    spelled, stem = text.strip(), word.casefold()[:STEM]
    alike = text[:1].isspace() == original[:1].isspace() and spelled[:1].isupper() == word[:1].isupper()
    whole = spelled.isalnum() and len(spelled) >= min(WHOLE, len(word)) and spelled.isdigit() == word.isdigit()
    return alike and whole and not spelled.casefold().startswith(stem)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    return shown_bytes(tokenizer.token_bytes(token))


def without(ids: Sequence[int], words: Iterable[Word]) -> tuple[int, ...]:
    """A text's ids without some words."""
    gone = {position for word in words for position in word.positions}
    return tuple(token for position, token in enumerate(ids) if position not in gone)


def exchanged(ids: Sequence[int], word: Word, token: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A text's ids with a token in each place of a word, spelled as the word is there."""
    return exchanged_all(ids, {word: token}, tokenizer)


def exchanged_all(ids: Sequence[int], instead: Mapping[Word, int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """A text's ids with other tokens in the places of some words."""
    starts = {place[0]: token for word, token in instead.items() for place in word.places}
    gone = {position for word in instead for position in word.positions}
    result: list[int] = []
    for position, old in enumerate(ids):
        if position in starts:
            blank = " " if token_text(tokenizer, old)[:1].isspace() else ""
            result += tokenizer.encode(blank + token_text(tokenizer, starts[position]).strip(), add_special_tokens=False)
        elif position not in gone:
            result.append(old)
    return tuple(result)
