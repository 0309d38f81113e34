"""Predict each token of a text by those before it: windows of a token file.

Shapes: ids (batch, length); targets the same, one token further.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.new_tokenizer import tokens_around
from glassformer.training.objectives.objective import ExampleBatch, Measures, Objective, scores_loss

Ids = npt.NDArray[Any]
HELD_OUT_SEED = 1 << 63  # above the seeds of all steps


class TokenWindows(Objective):
    """Examples are windows, with the tokens around them that the tokenizer puts around a text."""

    unit = "window"

    def __init__(self, tokenizer: Tokenizer, ids: Ids, length: int, held_out: Ids, source: str) -> None:
        """`length`: of a window, the tokens around it included. `source`: the token file's fingerprint."""
        self.tokenizer, self.ids, self.held_out_ids, self.source = tokenizer, ids, held_out, source
        self.before, self.after = tokens_around(tokenizer)
        self.length, self.size = length, length - len(self.before) - len(self.after)
        if self.size < 2:
            raise InputError(f"a window of {length} tokens has no room for text. Give a longer length.")
        if len(ids) < self.size:
            raise InputError(
                f"the text has {len(ids)} tokens to train on, fewer than one window of {self.size}. Give more text, or a "
                "shorter length."
            )

    @property
    def examples(self) -> int:
        return len(self.ids) // self.size

    @property
    def held_out(self) -> int:
        return len(self.held_out_ids) // self.size

    def window(self, row: int, held_out: bool) -> Ids:
        ids = self.held_out_ids if held_out else self.ids
        return np.asarray(ids[row * self.size : (row + 1) * self.size], np.int64)

    def draws(self, row: int, held_out: bool) -> np.random.Generator:
        """Where a window's random numbers come from."""
        return np.random.Generator(np.random.Philox(key=[HELD_OUT_SEED if held_out else self.step_seed, row]))

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        return {"perplexity": math.exp(min(loss, 700.0))}

    @abstractmethod
    def sample(self, model: Any) -> str:
        """What the model puts into the gaps of one window, for people to look at."""

    def fingerprint(self) -> str:
        return f"{self.source} {len(self.ids)} {self.length}"


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

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        ids = self.held_out_ids if held_out else self.ids
        windows = [np.asarray(ids[row * self.length : (row + 1) * self.length + 1], np.int64) for row in rows]
        longest = max(map(len, windows))
        inputs = np.zeros((len(windows), longest - 1), np.int64)
        targets = np.full((len(windows), longest - 1), -100, np.int64)  # the last held-out window may be shorter
        for number, window in enumerate(windows):
            inputs[number, : len(window) - 1], targets[number, : len(window) - 1] = window[:-1], window[1:]
        return ExampleBatch({"input_ids": torch.from_numpy(inputs)}, torch.from_numpy(targets), list(rows))

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
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
