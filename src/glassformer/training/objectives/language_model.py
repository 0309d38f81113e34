"""Predict each token of a text by those before it: windows of a token file.

Shapes: ids (batch, length); targets the same, one token further.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.ground.errors import InputError
from glassformer.training.objectives.objective import Batch, Measures, Objective, scores_loss
from glassformer.training.token_file import Ids


class LanguageModel(Objective):
    head = "causal"
    unit = "window"

    def __init__(self, ids: Ids, length: int, held_out: Ids, token_sizes: Ids, source: str) -> None:
        """`token_sizes`: how many bytes of text each id is, for bits per byte. `source`: the token file's."""
        self.ids, self.length, self.source = ids, length, source
        self.held_out_ids, self.token_sizes = held_out, token_sizes
        if len(ids) < length + 1:
            raise InputError(
                f"the text has {len(ids)} tokens to train on, fewer than one window of {length + 1}. Give more text, or a "
                "shorter length."
            )

    @property
    def examples(self) -> int:
        return (len(self.ids) - 1) // self.length

    @property
    def held_out(self) -> int:
        return -(-max(0, len(self.held_out_ids) - 1) // self.length)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> Batch:
        ids = self.held_out_ids if held_out else self.ids
        windows = [np.asarray(ids[row * self.length : (row + 1) * self.length + 1], np.int64) for row in rows]
        longest = max(map(len, windows))
        inputs = np.zeros((len(windows), longest - 1), np.int64)
        targets = np.full((len(windows), longest - 1), -100, np.int64)  # the last held-out window may be shorter
        for number, window in enumerate(windows):
            inputs[number, : len(window) - 1], targets[number, : len(window) - 1] = window[:-1], window[1:]
        return Batch({"input_ids": torch.from_numpy(inputs)}, torch.from_numpy(targets), list(rows))

    def loss(self, model: Any, batch: Batch) -> Tensor:
        states = model.base_model(batch.inputs["input_ids"], use_cache=False).last_hidden_state
        return scores_loss(model, states, batch.targets, self.label_smoothing)

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        windows = self.held_out if most is None else min(most, self.held_out)
        predicted = self.held_out_ids[1 : windows * self.length + 1]
        size = max(1, int(self.token_sizes[predicted].sum()))
        return {
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": loss * len(predicted) / math.log(2) / size,
        }

    def fingerprint(self) -> str:
        return f"{self.source} {len(self.ids)} {self.length}"
