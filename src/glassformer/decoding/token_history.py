"""What stands before the token that is to be chosen: the prompt, what was chosen since, and the draws.

Draws are counted, not streamed: each depends on (seed, index of the text, step, purpose) alone. So a text has the same
draws alone or in a batch, streamed or not, on every executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from glassformer.decoding.shortlist import Floats, Ids, Shortlist

TOKEN, XTC, BEAMS = 0, 1, 2  # what a draw is for
ONE_STEP = 2**64  # the counter of a step above that of the step before; a draw takes it on by one


class GuideLike(Protocol):
    """Where a text stands in its grammar."""

    @property
    def done(self) -> bool: ...

    def shape(self, shortlist: Shortlist) -> Shortlist: ...

    def accept(self, token: int) -> None: ...

    def fork(self) -> Self: ...


class TokenHistory:
    """Rules read it; only the policy that owns it writes to it."""

    def __init__(self, prompt: Sequence[int], room: int, seed: int | None = None, index: int = 0) -> None:
        self.prompt = tuple(prompt)
        self.chosen: list[int] = []
        self.room = room  # how many tokens may be chosen in all
        self.size = 0  # of the vocabulary, as the scores have it
        self.seed = seed
        self.index = index
        self.surprisals: list[float] = []  # of each drawn token, in bits, among what it was drawn from
        self.prompt_index = 0  # which of a batch's prompts this is
        self.unseen = 0  # tokens of the prompt without ids, which were read as vectors
        self.guide: GuideLike | None = None  # what a grammar allows next
        self.negative_logits: Floats | None = None  # those after the negative prompt, for guidance
        self._buffer = np.empty(max(64, 2 * len(self.prompt)), np.int64)
        self._buffer[: len(self.prompt)] = self.prompt

    @property
    def step(self) -> int:
        """Which token comes next: 0 is the first after the prompt."""
        return len(self.chosen)

    @property
    def ids(self) -> Ids:
        """Prompt and chosen tokens in one; not to be written to."""
        return self._buffer[: len(self.prompt) + len(self.chosen)]

    @property
    def length(self) -> int:
        """How many tokens there are, whether their ids are known or not."""
        return self.unseen + len(self.prompt) + len(self.chosen)

    @property
    def new(self) -> Ids:
        """The chosen tokens alone."""
        return self._buffer[len(self.prompt) : len(self.prompt) + len(self.chosen)]

    def add(self, token: int) -> None:
        length = len(self.prompt) + len(self.chosen)
        if length == self._buffer.size:
            self._buffer = np.concatenate((self._buffer, np.empty_like(self._buffer)))
        self._buffer[length] = token
        self.chosen.append(token)

    def draws(self, purpose: int = TOKEN) -> np.random.Generator:
        """This step's random numbers for one purpose."""
        key = np.array((self.seed or 0, self.index), np.uint64)
        bits = np.random.Philox(key=key, counter=(0, self.step, purpose, 0))
        return np.random.Generator(bits)

    def draw(self, purpose: int = TOKEN) -> float:
        """This step's number in [0, 1) for one purpose."""
        return float(self.draws(purpose).random())

    def next_draws(self, count: int) -> npt.NDArray[np.float64]:
        """The numbers that `draw` will give for the next tokens, one step after the other."""
        generator, draws = self.draws(), np.empty(count)
        for index in range(count):
            draws[index] = generator.random()
            generator.bit_generator.advance(ONE_STEP - 1)  # type: ignore[attr-defined]
        return draws

    def fork(self) -> TokenHistory:
        clone = copy(self)
        clone.chosen, clone.surprisals = list(self.chosen), list(self.surprisals)
        clone._buffer = self._buffer.copy()
        clone.guide = None if self.guide is None else self.guide.fork()
        return clone
