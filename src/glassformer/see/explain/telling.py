"""Which token of an answer is worth explaining: the first thing it says that it was not told.

"The capital of France is Paris": nobody asks why "The". A token tells something if the model expected it there and hardly
anywhere else in the text, and if the prompt did not have it.
"""

from __future__ import annotations

import numpy as np

from glassformer.ground.candidates import log_softmax
from glassformer.ground.errors import InputError
from glassformer.see.activations import Activations
from glassformer.see.explain.words import token_text

CLAUSE_ENDS = ".!?,;:\n。！？，"


def telling_token(reading: Activations) -> int:
    """The index of the answer's token that tells most, in its first clause."""
    first, tokenizer = reading.prompt_length, reading.model.tokenizer
    answer = reading.ids[first:]
    if not answer:
        raise InputError("there is no answer in which a token could be explained. Write at least one token.")
    here = np.zeros(len(answer))
    mean = np.zeros(len(answer))
    for chunk in reading.chunks(scored=True):
        assert chunk.scores is not None
        for row, logits in enumerate(chunk.scores):
            probabilities = np.exp(log_softmax(logits)[list(answer)])
            mean += probabilities / len(reading.ids)
            index = chunk.start + row + 1 - first
            if 0 <= index < len(answer):
                here[index] = probabilities[index]
    texts = [token_text(tokenizer, token) for token in answer]
    told = {token_text(tokenizer, token).strip().casefold() for token in reading.ids[:first]}
    information = here * np.log2(np.maximum(here, 1e-12) / np.maximum(mean - here / len(reading.ids), 1e-12))
    fresh = [index for index, text in enumerate(texts) if text.strip().isalnum() and text.strip().casefold() not in told]
    end = next((index for index, text in enumerate(texts) if any(map(text.__contains__, CLAUSE_ENDS))), len(texts))
    candidates = [index for index in fresh if index < end] or fresh or [0]
    return max(candidates, key=lambda index: (information[index], -index))
