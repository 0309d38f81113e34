"""Which examples a step sees: a function of the seed and the step alone, so that a training resumes without any state."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


class ExampleOrder:
    """All examples in a random order, then all in another one, and so on; steps take them as they come."""

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self._permutation = lru_cache(maxsize=2)(self._permuted)  # a step may see the end of one and the start of another

    def at(self, step: int) -> Indices:
        """The examples of a step, counted from 0."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, within = places // self.examples, places % self.examples
        return np.concatenate([self._permutation(int(epoch))[within[epochs == epoch]] for epoch in np.unique(epochs)])

    def epoch(self, step: int) -> float:
        """How often every example has been seen before a step."""
        return step * self.batch_size / self.examples

    def _permuted(self, epoch: int) -> Indices:
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(self.examples)
