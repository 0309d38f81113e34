"""Which token of an answer is worth explaining: of its first sentence, the one that owes most to the words of the prompt.

"The capital of France is Paris": nobody asks why "The". Nor does anybody ask why "century" follows "in the 17th": the
answer's own words suffice for that. So words of the prompt are exchanged, each wherever it stands, and a token tells
something if the model expected it with them and hardly does with others; and if the prompt did not have it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from glassformer.ground.errors import InputError
from glassformer.see.activations import CHUNK_BYTES
from glassformer.see.explain.texts import ReadText
from glassformer.see.explain.word_effects import instead
from glassformer.see.explain.words import LIKELY, Word, exchanged, spelled_places

CLAUSE_ENDS, SENTENCE_ENDS = ".!?,;:\n。！？，", ".!?\n。！？"
LOOKED_THROUGH = 32  # tokens of an answer, at most
EXCHANGED = 6  # words of the prompt: those that the model expected least
TOLD, LATER = 0.1, 0.5  # what a word counts that the prompt has, too, and one after the first clause


def telling_token(text: ReadText) -> int:
    """The index of the answer's token that tells most."""
    reading, first = text.reading, text.reading.prompt_length
    if len(text.ids) == first:
        raise InputError("there is no answer in which a token could be explained. Write at least one token.")
    texts = reading.texts
    answer = _sentence(text)
    words = list(spelled_places(answer))
    if not words:
        return 0
    told = {_spelling(texts, place) for place in spelled_places(texts[:first])}
    clause = next((index for index, piece in enumerate(answer) if any(map(piece.__contains__, CLAUSE_ENDS))), len(answer))
    owed = dict(zip(range(len(answer)), owed_to_words(text, [first + index for index in range(len(answer))]), strict=True))

    def worth(word: tuple[int, ...]) -> tuple[float, bool]:
        new = _spelling(answer, word) not in told
        return sum(owed[index] for index in word) * (1 if new else TOLD) * (1 if word[0] < clause else LATER), new

    telling = max(words, key=worth)
    return max(telling, key=lambda index: owed[index])


def owed_to_words(text: ReadText, positions: Sequence[int]) -> list[float]:
    """How many bits tokens lose, times their probability, when words of the prompt are exchanged, one after the other."""
    tokenizer, causal = text.reading.model.tokenizer, text.reading.source is None
    ids = text.ids[: max(positions)] if causal else text.ids_with_words
    chosen = list(least_expected(text).items())
    others = [exchanged(ids, {word: token}, tokenizer) for word, token in chosen]
    before = [
        [len(exchanged(ids[:position], {word: token}, tokenizer)) - 1 if causal else position - 1 for position in positions]
        for word, token in chosen
    ]
    tokens = [text.ids[position] for position in positions]
    places = list(zip(positions, tokens, strict=True))
    here = [text.probability(position - 1, token) for position, token in places]
    least = [max(text.elsewhere(position - 1, token), 1e-12) for position, token in places]
    owed = [0.0] * len(positions)
    kept = causal and len(others) * len(tokens) * 4 * text.reading.model.config.vocab_size <= CHUNK_BYTES
    for other, ends, logits in zip(others, before, text.after_tokens(others, before), strict=True):
        for index, token in enumerate(tokens):
            there = max(float(text.probabilities(logits[index])[token]), least[index])
            owed[index] += max(0.0, here[index] * math.log2(max(here[index], 1e-12) / there))
            if kept:
                text.known[tuple(other[: ends[index] + 1])] = logits[index]
    return owed


def least_expected(text: ReadText) -> dict[Word, int]:
    """Words of the prompt that the model expected least, each with a token to put in its place."""
    first = text.reading.prompt_length if text.reading.source is None else len(text.reading.source)
    words = [word for word in text.words() if word.origin == "prompt" and word.first < first]
    words = [word for word, _ in zip(sorted(words, key=lambda word: -_rank(text, word)), range(EXCHANGED), strict=False)]
    return {word: tokens[0] for word, tokens in instead(text, words, 1).items()}


def _rank(text: ReadText, word: Word) -> int:
    likely, token = text.expected(word), text.ids_with_words[word.first]
    return likely.index(token) if token in likely else LIKELY


def _sentence(text: ReadText) -> Sequence[str]:
    """The texts of the answer's tokens, up to the end of its first sentence."""
    tokens = text.reading.tokens[text.reading.prompt_length : len(text.ids)]
    ends = (index for index, token in enumerate(tokens) if token.special or any(map(token.text.__contains__, SENTENCE_ENDS)))
    return [token.text for token in tokens[: next((end for end in ends if end), len(tokens))]]


def _spelling(texts: Sequence[str], place: Sequence[int]) -> str:
    return "".join(texts[position] for position in place).strip().casefold()
