"""Launches of the persistent decoder whose results are waited for: what tests and proofs look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.engine.gpu.persistent.decoder import PersistentDecoder


@dataclass(frozen=True)
class Decoded:
    """What a launch computed: ids[i] is the best id after step i, or NO_ID, the last, where logits are not numbers."""

    ids: list[int]
    scores: Tensor | None
    residuals: Tensor | None


def decode(
    decoder: PersistentDecoder, ids: Sequence[int], start: int, steps: int, pool: Tensor, pages: Sequence[int], *,
    stop_ids: Sequence[int] = (), scores_from: int | None = None, watch_residuals: bool = False, absent_block: int = -1,
) -> Decoded:  # fmt: skip
    """One launch; with `scores_from`, the scores of that step and the later ones are returned."""
    numbers = torch.tensor([*ids, *stop_ids, *pages], dtype=torch.int32).to(pool.device)
    given, stops, page_table = torch.split(numbers, [len(ids), len(stop_ids), len(pages)])
    scores = None
    if scores_from is not None:
        scores = torch.empty(steps - scores_from, decoder.shape.vocabulary, device=pool.device)
    residuals = decoder.new_residuals(steps) if watch_residuals else None
    decoder.begin()
    decoder.launch(
        given, start, steps, pool, page_table, stop_ids=stops, scores=scores, scores_from=scores_from or 0,
        residuals=residuals, absent_block=absent_block,
    )  # fmt: skip
    return Decoded(decoder.chosen(decoder.results(steps).tolist()), scores, residuals)
