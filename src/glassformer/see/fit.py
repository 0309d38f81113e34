"""The loop that fits something to activations: a tuned lens, features and probes say only their parameters and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from glassformer.ground.progress import Progress


def fit_device() -> torch.device:
    """Where a fit's parameters lie whose rows are taken from files: a GPU, where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fit(
    optimizer: torch.optim.Optimizer,
    losses: Callable[[int], Iterable[torch.Tensor]],
    steps: int = 1,
    *,
    rate: Callable[[int], float] | None = None,
    after: Callable[[int], None] | None = None,
    progress: Progress | None = None,
) -> None:
    """Lower some losses step by step, counted from 0.

    Args:
        losses: of a step. Each is differentiated before the next one is asked for, so that one at a time is in memory; a
            generator sees the gradients when it goes on. An optimizer that searches along a line asks several times.
        rate: the learning rate of a step; by default the optimizer's own.
        after: called when a step has changed the parameters.
        progress: called as (steps so far, total).
    """

    def total(step: int) -> float:
        optimizer.zero_grad()
        found = 0.0
        with torch.enable_grad():
            for loss in losses(step):
                loss.backward()  # type: ignore[no-untyped-call]
                found += loss.item()
        return found

    step_by: Any = optimizer.step
    for step in range(steps):
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
        step_by(partial(total, step))
        if after is not None:
            after(step)
        if progress is not None:
            progress(step + 1, steps)
