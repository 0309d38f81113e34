"""Answer as the assistant of given conversations does: its words are predicted, everything else is read.

Shapes: states (windows, width, hidden); targets (windows, width).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from glassformer.families.shared.base import IGNORED, WatchLike
from glassformer.training.objectives.objective import ExampleBatch, Measures, Objective, scores_loss
from glassformer.training.packing import TrainingRow, pack_rows, run_packed


class ChatAnswers(Objective):
    head = "causal"

    def __init__(self, rows: Sequence[TrainingRow], held_out: Sequence[TrainingRow], source: str, pack: bool = True) -> None:
        """`source`: a fingerprint of the conversations. `pack`: short rows share a window."""
        self._rows, self._held_out, self.source, self.pack = rows, held_out, source, pack

    @property
    def examples(self) -> int:
        return len(self._rows)

    @property
    def held_out(self) -> int:
        return len(self._held_out)

    def batch(self, rows: Sequence[int], held_out: bool = False) -> ExampleBatch:
        source = self._held_out if held_out else self._rows
        packed = pack_rows([source[number] for number in rows], self.pack)
        return ExampleBatch(packed.inputs, packed.targets, list(rows))

    def loss(self, model: Any, batch: ExampleBatch) -> Tensor:
        states, known = self.run_base(model, batch).last_hidden_state, batch.targets != IGNORED
        return scores_loss(model, states[known], batch.targets[known], self.label_smoothing)  # most tokens are only read

    def run_base(self, model: Any, batch: ExampleBatch, watch: WatchLike = None) -> Any:
        return run_packed(model.base_model, batch.inputs, watch)

    def measures(self, model: Any, loss: float, most: int | None = None) -> Measures:
        return {"perplexity": math.exp(min(loss, 700.0))}

    def fingerprint(self) -> str:
        return self.source
