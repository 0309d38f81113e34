"""What an adapter is, whatever file it came from.

Shapes: a (rank, inputs), b (outputs, rank); an embedding's inputs are its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glassformer.blueprints import Head
from glassformer.checkpoint import StoredTensor


@dataclass(frozen=True)
class MatrixUpdate:
    """What is added to a matrix: scale · b · a (https://arxiv.org/abs/2106.09685).

    With a magnitude (DoRA, https://arxiv.org/abs/2402.09353) each row of the sum gets that length.
    """

    a: StoredTensor
    b: StoredTensor
    scale: float
    magnitude: StoredTensor | None = None  # (outputs,)

    @property
    def rank(self) -> int:
        return self.a.shape[0]


@dataclass(frozen=True)
class Adapter:
    """An adapter's tensors under its own names: those of the modules of the model that it was trained on."""

    path: Path  # as it was named
    updates: Mapping[str, MatrixUpdate]  # by module
    replacements: Mapping[str, StoredTensor]  # tensors that take the place of the base's: biases, whole modules
    base: str | None = None  # the model that it was trained on, as the file names it
    head: Head | None = None  # the head of that model, if it is said
    targets: Callable[[str], bool] | None = None  # which modules it says that it changes

    @property
    def made_for(self) -> str:
        """Half a sentence for errors about a base that does not fit."""
        return f" It was made for {self.base!r}." if self.base else ""
