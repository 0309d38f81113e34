"""Why two texts are similar: which words of each make it, found by leaving them out, and checked by keeping them alone.

Any two texts are a little similar to a model, often much; so what counts is by how much more they are than each is to a text
without words. A word is worth what the similarity loses when it is left out of its text.

Shapes: states (tokens, hidden); vectors (texts, dimensions).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glassformer.checkpoint.sentence_vectors import (
    prompted_text,
    sentence_vector,
    similarity,
    unpooled_tokens,
)
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.see.activations import Activations
from glassformer.see.explain.explanation import (
    MOST_NAMED,
    MUCH,
    SLIGHT,
    Check,
    Evidence,
    Explanation,
    Similarity,
    WordEffect,
    quoted_list,
)  # fmt: skip
from glassformer.see.explain.words import MAX_WORDS, Word, without, words_of
from glassformer.see.protocols import ModelLike
from glassformer.see.tokens import describe_tokens
from glassformer.see.view import Floats

PLACES = ("the first", "the second")
HARDLY = 0.25  # of the similarity: how much a text without words must lack of it
ONE_WAY = "one way of taking it away"


class EmbeddedTexts:
    """Two texts, and the vectors that a model makes of them."""

    def __init__(self, model: ModelLike, texts: Sequence[str]) -> None:
        if model.config.encoder_layers:
            raise InputError(
                f"{model.name} writes a text for a text, and makes no vectors. Take an encoder, such as minilm."
            )
        self.model, self.settings = model, model.sentence
        self.prompt = "" if self.settings.prompt is None else self.settings.prompts[self.settings.prompt]
        self.readings = [self._read(text, place) for text, place in zip(texts, PLACES, strict=True)]
        known = self.settings.similarity
        self.function = known if known in ("cosine", "dot") else "cosine"  # distances have no share that a word takes off

    def _read(self, text: str, place: str) -> Activations:
        ids = self.model.tokenizer(prompted_text(text, self.prompt, self.settings))["input_ids"]
        limit = min(self.settings.limit or self.model.config.context, self.model.config.context)
        if len(ids) > limit:
            raise InputError(f"{place} text has {len(ids)} tokens, and {self.model.name} reads at most {limit}. Shorten it.")
        reading = Activations(
            self.model, tuple(ids), None, len(ids), (prompted_text(text, "", self.settings),) if self.prompt else None
        )
        if not any(word.origin != "template" for word in words_of(reading, len(reading), reading.contents)):
            raise InputError(f"{place} text has no word that could be left out. Say something.")
        return reading

    @property
    def unpooled(self) -> int:
        """How many tokens of a prompt the vector is not made of."""
        return unpooled_tokens(self.model.tokenizer, self.prompt, self.settings)

    def words(self) -> list[tuple[int, Word]]:
        """Those of each text, with which text it is."""
        texts = [words_of(reading, len(reading), reading.contents) for reading in self.readings]
        found = [(index, [word for word in words if word.origin != "template"]) for index, words in enumerate(texts)]
        return [(index, word) for index, words in found for word in words[:MAX_WORDS]]

    def left(self, index: int, gone: Sequence[tuple[int, Word]]) -> tuple[int, ...]:
        """What remains of a text without some words; its last token, if nothing would."""
        ids = self.readings[index].ids
        return without(ids, [word for place, word in gone if place == index]) or ids[-1:]

    def pair_without(self, gone: Sequence[tuple[int, Word]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.left(0, gone), self.left(1, gone)

    def similarities(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[float]:
        """Each text is read once."""
        texts = list(dict.fromkeys(tuple(ids) for pair in pairs for ids in pair))
        vectors = dict(zip(texts, self._vectors(texts), strict=True))
        sides = (np.stack([vectors[tuple(pair[side])] for pair in pairs]) for side in (0, 1))
        values: list[float] = similarity(self.function, *sides).tolist()
        return values

    def _vectors(self, texts: Sequence[tuple[int, ...]]) -> Iterator[Floats]:
        reader = self.model.reader
        states = reader.read(texts) if reader is not None else (Activations(self.model, ids).at("final") for ids in texts)
        return (sentence_vector(each, self.settings, unpooled=self.unpooled) for each in states)


@dataclass(frozen=True)
class NamedWords:
    """Those of one text that are said to make the similarity, and what it is without them."""

    place: str  # which text it is
    words: tuple[str, ...]
    left: float


def explain_similarity(
    model: ModelLike, first: str, second: str, *, quick: bool, evidence: bool, progress: Progress | None
) -> Explanation:
    """Why a model holds two texts for similar."""
    texts = EmbeddedTexts(model, (first, second))
    words = texts.words()
    whole, empty = (texts.readings[0].ids, texts.readings[1].ids), (texts.left(0, words), texts.left(1, words))
    pairs = [whole, (whole[0], empty[1]), (empty[0], whole[1])]
    pairs += [texts.pair_without([word]) for word in words]
    value, *others = texts.similarities(pairs)
    similar, values = Similarity(texts.function, max(others[:2])), others[2:]
    shift = (0, len(whole[0]))
    effects = [_effect(word, index, shift[index], left - value) for (index, word), left in zip(words, values, strict=True)]
    order, named = by_share([effect.worth for effect in effects], [index for index, _ in words], value, similar.empty)
    effects, chosen = [effects[index] for index in order], [words[index] for index in order[:named]]
    if progress is not None:
        progress(1, 2)
    sides, alone = _without_and_alone(texts, words, chosen) if chosen else ((), None)
    alone = None if quick else alone
    if progress is not None:
        progress(2, 2)
    tokens = tuple(token.text for ids in whole for token in describe_tokens(model.tokenizer, ids))
    return Explanation(
        model.name, None, tokens, None, None, None, value, None, tuple(effects), named, None,
        () if alone is None else checks(sides, alone, value, similar), said(value, similar, effects, sides, alone),
        evidence_for(value, similar, effects[:named]) if evidence else (), similar,
    )  # fmt: skip


def _effect(word: Word, index: int, shift: int, change: float) -> WordEffect:
    positions = tuple(position + shift for position in word.positions)
    return WordEffect(word.text, "pair" if index else word.origin, positions, change, ())


def _without_and_alone(
    texts: EmbeddedTexts, words: Sequence[tuple[int, Word]], chosen: Sequence[tuple[int, Word]]
) -> tuple[tuple[NamedWords, ...], float]:
    """What is left without the chosen words of one text, and with them alone; a text that has none stays as it is."""
    sides = [[(index, word) for index, word in chosen if index == side] for side in (0, 1)]
    named = [side for side in sides if side]
    rest = [(index, word) for index, word in words if sides[index] and (index, word) not in chosen]
    *left, alone = texts.similarities([texts.pair_without(gone) for gone in (*named, rest)])
    found = zip(named, left, strict=True)
    return tuple(NamedWords(PLACES[side[0][0]], tuple(word.text for _, word in side), value) for side, value in found), alone


def by_share(worths: Sequence[float], texts: Sequence[int], value: float, empty: float) -> tuple[list[int], int]:
    """The words' indices, those that make the similarity first, and how many these are: at most three of each text.

    They take a share of it with them, and at least half as much as the word that takes most.
    """
    order = sorted(range(len(worths)), key=lambda index: -worths[index])
    least = max(SLIGHT * (value - empty), MUCH * worths[order[0]])
    strong = [index for index in order if is_similar(value, empty) and worths[index] >= least]
    strong = [index for at, index in enumerate(strong) if [texts[n] for n in strong[:at]].count(texts[index]) < MOST_NAMED]
    return [*strong, *(index for index in order if index not in strong)], len(strong)


def is_similar(value: float, empty: float) -> bool:
    """Whether the similarity is more than what any text has."""
    return value - empty >= HARDLY * abs(value)


def checks(sides: Sequence[NamedWords], alone: float, value: float, similar: Similarity) -> tuple[Check, ...]:
    """Whether the named words make at least half of what the texts have beyond a text without words."""
    half = similar.empty + MUCH * (value - similar.empty)
    names = " and ".join(f"{quoted_list(side.words)} of {side.place}" for side in sides)
    without_them = (
        Check(
            f"without {quoted_list(side.words)} in {side.place}, less than half of it is left", side.left, side.left < half
        )
        for side in sides
    )
    return (*without_them, Check(f"with {names} alone, at least half of it stays", alone, alone >= half))


def said(
    value: float, similar: Similarity, words: Sequence[WordEffect], sides: Sequence[NamedWords], alone: float | None
) -> tuple[str, ...]:
    """The answer to "why are they similar?"."""
    text = f"The texts are similar by {value:.2f} ({similar.function}), and to a text without words by {similar.empty:.2f}."
    most = max(words, key=lambda word: abs(word.worth))
    if not sides:
        similar_at_all = is_similar(value, similar.empty)
        nothing = "No single word makes it" if similar_at_all else "So there is hardly a similarity to explain"
        return text, f"{nothing}: leaving “{most.text}” out changes it most ({-most.worth:+.2f})."
    names = " and ".join(f"{quoted_list(side.words)} in {side.place}" for side in sides)
    single = sum(len(side.words) for side in sides) == 1
    left = "; ".join(f"left out of {side.place}, {side.left:.2f} stays" for side in sides)
    made = f"{names} make{'s' if single else ''} it: {left}."
    if alone is None:
        return text, made
    return text, made, f"With {'it' if single else 'these words'} alone it is {alone:.2f}."


def evidence_for(value: float, similar: Similarity, words: Sequence[WordEffect]) -> tuple[Evidence, ...]:
    """How each clause was measured."""
    how = f"the {similar.function} of the texts' vectors"
    empty = "the same, with all words of one text left out"
    left_out = "left out of all its places in {} text"
    return (
        Evidence("similar", f"{value:.2f}", how, "exact: one pass of each text"),
        Evidence("to a text without words", f"{similar.empty:.2f}", empty, "the larger of two"),
        *(
            Evidence(f"“{word.text}”", f"{-word.worth:+.2f}", left_out.format(PLACES[word.origin == "pair"]), ONE_WAY)
            for word in words
        ),
    )
