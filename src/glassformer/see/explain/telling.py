"""Which token of an answer is worth explaining: the first thing it says that it owes to what it was told.

"The capital of France is Paris": nobody asks why "The". Nor does anybody ask why "century" follows "in the 17th": the
answer's own words suffice for that. So the prompt's words are left out wherever they stand, and a token tells something if
the model expected it with them and hardly does without; and if the prompt did not have it.
"""

from __future__ import annotations

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.see.explain.texts import ReadText, probability
from glassformer.see.explain.words import without, words_of

CLAUSE_ENDS = ".!?,;:\n。！？，"


def telling_token(read: ReadText) -> int:
    """The index of the answer's token that tells most, in its first clause."""
    first, ids = read.reading.prompt_length, read.reading.ids
    if len(ids) == first:
        raise InputError("there is no answer in which a token could be explained. Write at least one token.")
    texts = read.reading.texts
    answer, told = texts[first:], {text.strip().casefold() for text in texts[:first]}
    fresh = [index for index, text in enumerate(answer) if text.strip().isalnum() and text.strip().casefold() not in told]
    end = next((index for index, text in enumerate(answer) if any(map(text.__contains__, CLAUSE_ENDS))), len(answer))
    words = [index for index, text in enumerate(answer) if text.strip().isalnum()]
    candidates = [index for index in fresh if index < end] or [index for index in words if index < end] or fresh or [0]
    if len(candidates) == 1:
        return candidates[0]
    owed = owed_to_prompt(read, [first + index for index in candidates])
    return max(zip(owed, candidates, strict=True), key=lambda pair: (pair[0], -pair[1]))[1]


def owed_to_prompt(read: ReadText, positions: list[int]) -> list[float]:
    """How much likelier the prompt's words make the tokens at some positions: bits, times their probability."""
    reading = read.reading
    if reading.source is not None:
        gone, words, rest = set[int](), [], without(reading.source, read.words()) or reading.source[-1:]
    else:
        words = [word for word in words_of(reading, len(read.ids), reading.contents) if word.origin == "prompt"]
        gone, rest = {position for word in words for position in word.positions}, None
    left = [sum(position not in gone for position in range(end)) for end in positions]  # tokens before each
    start = max(0, min(left) - 1)
    logits = read.after_each(without(read.ids[: max(positions)], words), start, rest) if max(left) else []
    owed = []
    for position, count in zip(positions, left, strict=True):
        token = reading.ids[position]
        here = read.probability(position - 1, token)
        there = read.elsewhere(position - 1, token)
        if count and position not in gone:
            there = max(there, probability(logits[count - 1 - start], token))
        owed.append(here * float(np.log2(max(here, 1e-12) / max(there, 1e-12))))
    return owed
