"""Predict each token of a text by those before it: windows of a token file.

Shapes: ids (batch, length); targets alike, one token further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from glassformer.ground.errors import InputError
from glassformer.torch.base import IGNORED
from glassformer.training.measures import perplexity
from glassformer.training.objectives.objective import ExampleBatch, Ids, Measures, Objective


class TokenWindows(Objective[Ids]):
    """Examples are windows of a token file."""

    unit = "window"

    def __init__(self, ids: Ids, length: int, held_out: Ids, source: str, size: int) -> None:
        """`length`: of a window. `source`: the token file's fingerprint. `size`: tokens of the file in a window."""
        super().__init__(ids, held_out, f"{source} {len(ids)} {length}")
        self.length = length
        if len(ids) < size:
            raise InputError(
                f"the text has {len(ids)} tokens to train on, fewer than one window of {size}. Give more text, or a "
                "shorter length."
            )

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        return {"perplexity": perplexity(loss)}


class LanguageModel(TokenWindows):
    head = "causal"

    def __init__(self, ids: Ids, length: int, held_out: Ids, token_sizes: Ids, source: str) -> None:
        """`token_sizes`: how many bytes of text each id is, for bits per byte. `source`: the token file's."""
        super().__init__(ids, length, held_out, source, length + 1)
        self.token_sizes = token_sizes

    @property
    def examples(self) -> int:
        return (len(self.data) - 1) // self.length

    @property
    def held_out(self) -> int:
        return -(-max(0, len(self.held_out_data) - 1) // self.length)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        ids = self.data_of(held_out)
        windows = [np.asarray(ids[row * self.length : (row + 1) * self.length + 1], np.int64) for row in rows]
        longest = max(map(len, windows))
        inputs = np.zeros((len(windows), longest - 1), np.int64)
        targets = np.full((len(windows), longest - 1), IGNORED, np.int64)  # the last held-out window may be shorter
        for index, window in enumerate(windows):
            inputs[index, : len(window) - 1], targets[index, : len(window) - 1] = window[:-1], window[1:]
        return ExampleBatch({"input_ids": torch.from_numpy(inputs)}, torch.from_numpy(targets), list(rows))

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        windows = self.held_out if most is None else min(most, self.held_out)
        predicted = self.held_out_data[1 : windows * self.length + 1]
        size = max(1, int(self.token_sizes[predicted].sum()))
        return {"perplexity": perplexity(loss), "bits_per_byte": loss * len(predicted) / math.log(2) / size}
