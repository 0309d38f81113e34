"""Windows of a token file out of which something is taken, for the model to put back.

What is taken out is drawn anew whenever a window is seen, from the step's seed and the window's number; of a held-out window
always the same.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.training.new_tokenizer import tokens_around
from glassformer.training.objectives.objective import Measures, Objective
from glassformer.training.token_file import Ids

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
