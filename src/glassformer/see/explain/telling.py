"""Which token of an answer is worth explaining: the first thing it says that it was not told.

"The capital of France is Paris": nobody asks why "The". A token tells something if the model expected it there and hardly
anywhere else in the text, and if the prompt did not have it.
"""

from __future__ import annotations

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.see.explain.texts import ReadText

CLAUSE_ENDS = ".!?,;:\n。！？，"


def telling_token(read: ReadText) -> int:
    """The index of the answer's token that tells most, in its first clause."""
    first, ids = read.reading.prompt_length, read.reading.ids
    if len(ids) == first:
        raise InputError("there is no answer in which a token could be explained. Write at least one token.")
    texts = read.reading.texts
    answer, told = texts[first:], {text.strip().casefold() for text in texts[:first]}
    here = np.array([read.probability(position, ids[position + 1]) for position in range(first - 1, len(ids) - 1)])
    elsewhere = np.array([read.elsewhere(position, ids[position + 1]) for position in range(first - 1, len(ids) - 1)])
    information = here * np.log2(np.maximum(here, 1e-12) / np.maximum(elsewhere, 1e-12))
    fresh = [index for index, text in enumerate(answer) if text.strip().isalnum() and text.strip().casefold() not in told]
    end = next((index for index, text in enumerate(answer) if any(map(text.__contains__, CLAUSE_ENDS))), len(answer))
    candidates = [index for index in fresh if index < end] or fresh or [0]
    return max(candidates, key=lambda index: (information[index], -index))
