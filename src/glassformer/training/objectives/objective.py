"""What a model is trained to do: examples, which of them each step sees, and the loss of a batch of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from glassformer.blueprints import Head
from glassformer.torch.arguments import WatchLike
from glassformer.torch.base import IGNORED
from glassformer.torch.layers import Linear
from glassformer.training.linear_cross_entropy import linear_cross_entropy

Data = TypeVar("Data", bound=Sized)
Ids = npt.NDArray[Any]
Measures = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """Examples as tensors."""

    inputs: Mapping[str, Tensor]  # of the model
    targets: Tensor  # what is to come out; -100 where nothing is
    rows: Sequence[int] = ()  # the examples' indices, for messages

    @cached_property
    def count(self) -> int:
        """How many targets there are, over which the loss is a mean."""
        return int((self.targets != IGNORED).sum())

    @property
    def tokens(self) -> int:
        """How many tokens are read, padding included."""
        return sum(value.numel() for name, value in self.inputs.items() if name.endswith("input_ids")) or len(self.targets)

    def to(self, device: torch.device) -> ExampleBatch:
        """On another device; what was counted here need not be counted there, where that would be waited for."""
        if device.type == "cpu":
            return self
        moved = {name: value.to(device, non_blocking=True) for name, value in {**self.inputs, "": self.targets}.items()}
        targets = moved.pop("")
        batch = replace(self, inputs=moved, targets=targets)
        batch.__dict__["count"] = self.count
        return batch


class Objective(ABC, Generic[Data]):
    """Examples have indices, from 0; `held_out` ones are never trained on."""

    head: ClassVar[Head]  # of the model that it needs
    unit: ClassVar[str] = "row"  # what an example is
    summed: ClassVar[tuple[str, ...]] = ("loss",)  # what `sums` gives
    sparse: ClassVar[bool] = False  # few positions have a target: only these are scored
    label_smoothing: float = 0.0
    pad_multiple: int = 1  # padded batches are as long as a multiple of this: few shapes are compiled, not many
    step_seed: int = 0  # what is drawn for the batches of a step follows from this and an example's index

    def __init__(self, data: Data, held_out_data: Data, source: str) -> None:
        """`source`: a fingerprint of both."""
        self.data, self.held_out_data, self.source = data, held_out_data, source

    def data_of(self, held_out: bool) -> Data:
        return self.held_out_data if held_out else self.data

    @property
    def examples(self) -> int:
        """The number of examples to train on."""
        return len(self.data)

    @property
    def held_out(self) -> int:
        return len(self.held_out_data)

    @abstractmethod
    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        """These examples as tensors."""

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        """The sum of the losses of all targets; here, of tokens of the vocabulary."""
        states, targets = self.run_base(model, batch).last_hidden_state, batch.targets
        if self.sparse:
            known = targets != IGNORED
            states, targets = states[known], targets[known]
        return vocabulary_loss(model, states, targets, self.label_smoothing)

    def sums(self, model: Any, batch: ExampleBatch) -> Mapping[str, Tensor]:
        """The loss, and what else can be summed over the targets of held-out batches, to be shown as means."""
        return {"loss": self.loss(model, batch)}

    def run_base(self, model: Any, batch: ExampleBatch, watch: WatchLike = None) -> Any:
        """The output of the model below its head."""
        return model.base_model(**batch.inputs, use_cache=False, watch=watch)

    def fingerprint(self) -> str:
        """What the examples are, so that a training goes on with these only."""
        return self.source

    def held_out_batches(self, size: int, most: int | None = None) -> Iterator[ExampleBatch]:
        count = self.held_out if most is None else min(self.held_out, most)
        for start in range(0, count, size):
            yield self.batch(range(start, min(start + size, count)), held_out=True)

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        """What else is measured on the first `most` held-out examples, given their mean loss."""
        return {}


def vocabulary_loss(model: Any, states: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """The summed loss of tokens; of a head that is one matrix, all logits are never there at once."""
    head: Any = model.head_module
    states, targets = states.flatten(0, -2), targets.flatten()
    if isinstance(head, Linear) and hasattr(head, "output") and type(head).forward is Linear.forward:
        return linear_cross_entropy(states, head.weight, head.bias, targets, label_smoothing)
    logits = head(states)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)


class ExampleOrder:
    """All examples in a random order, then all in another one, and so on; steps take them as they come.

    It is a function of the seed and the step alone, so that a training resumes without any state.
    """

    def __init__(self, examples: int, batch_size: int, seed: int) -> None:
        self.examples, self.batch_size, self.seed = examples, batch_size, seed
        self._permutation = lru_cache(maxsize=2)(self._permuted)  # a step may see the end of one and the start of another

    def rows(self, step: int) -> Ids:
        """The examples of a step, counted from 0."""
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, within = places // self.examples, places % self.examples
        return np.concatenate([self._permutation(int(epoch))[within[epochs == epoch]] for epoch in np.unique(epochs)])

    def epoch(self, step: int) -> float:
        """How often every example has been seen before a step."""
        return step * self.batch_size / self.examples

    def _permuted(self, epoch: int) -> Ids:
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch])).permutation(self.examples)


class RaggedRows:
    """Rows of ids of any lengths, one after the other in one array; some of them as a padded batch at once."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._ids = np.fromiter(chain.from_iterable(rows), np.int32)
        self._ends = np.cumsum([0, *map(len, rows)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: int) -> tuple[int, ...]:
        return tuple(self._ids[self._ends[row] : self._ends[row + 1]].tolist())

    def padded(self, rows: Sequence[int], fill: int, multiple: int = 1) -> tuple[Tensor, Tensor]:
        """(batch, longest), padded at the end to a multiple; and which of it is real, as 1 and 0."""
        starts, lengths = self._ends[rows], self._ends[np.asarray(rows) + 1] - self._ends[rows]
        columns = np.arange(-(-lengths.max(initial=0) // multiple) * multiple)
        real = columns < lengths[:, None]
        ids = self._ids[np.where(real, starts[:, None] + columns, 0)]
        return torch.from_numpy(np.where(real, ids, fill).astype(np.int64)), torch.from_numpy(real.astype(np.int64))


def padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[Tensor, Tensor]:
    """Rows as a padded batch, and which of it is real."""
    return RaggedRows(rows).padded(range(len(rows)), fill)
