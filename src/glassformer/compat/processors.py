"""The classes that scripts derive their own rules and stops from; `generate` takes plain functions too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LogitsProcessor:
    """A rule: what `__call__(input_ids, scores)` returns takes the scores' place."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(self, input_ids, scores).")


class LogitsProcessorList(list[Callable[..., Tensor]]):
    """Rules that are applied one after the other."""

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        for processor in self:
            scores = processor(input_ids, scores, **kwargs)
        return scores


class StoppingCriteria:
    """A stop: `__call__(input_ids, scores)` says whether the text ends here, for each row or for all."""

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs: Any) -> Tensor | bool:
        raise NotImplementedError(f"{type(self).__name__} needs a method __call__(self, input_ids, scores).")


class StoppingCriteriaList(list[Callable[..., Any]]):
    """Stops of which any one suffices."""

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **kwargs: Any) -> Tensor:
        done = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
        for criterion in self:
            done |= torch.as_tensor(criterion(input_ids, scores, **kwargs), device=input_ids.device)
        return done


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the generators of `random`, numpy and torch; `generate` draws its seed from torch's.

    `deterministic`: also have torch use deterministic algorithms where it has them.
    """
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
