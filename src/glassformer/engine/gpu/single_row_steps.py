"""The next tokens of a single row by the persistent kernel.

The best tokens take one launch for many steps, which can keep its scores and residuals. Where tokens are drawn, each step is
a launch that leaves its scores on the device; kernels choose by them, and the next launch reads the token that they wrote.

Shapes: scores (steps, vocabulary); residuals (steps, layers, 2, hidden).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.engine.gpu.decode_ahead import MAX_STEPS, Draws, StepResults, StepTensors, mode_of
from glassformer.engine.gpu.kernels.choosing import ChoiceMode
from glassformer.engine.gpu.kv_pool import GpuRow
from glassformer.engine.gpu.passes import all_to_host
from glassformer.engine.gpu.persistent.decoder import PersistentDecoder
from glassformer.engine.protocol import NOT_CHOSEN, Choice, ChosenTokens

MAX_UNWATCHED_STEPS = 4096  # of one launch
RESIDUAL_SITE = re.compile(r"blocks\.(\d+)\.(middle|residual)")


def can_read(sites: frozenset[str]) -> bool:
    """Whether the kernel keeps what is at these sites: the residual stream."""
    return all(RESIDUAL_SITE.fullmatch(site) for site in sites)


class SingleRowSteps:
    """Decodes one row with the persistent kernel."""

    def __init__(self, decoder: PersistentDecoder, kernels: Any, pool: Tensor) -> None:
        self._decoder, self._kernels, self._pool = decoder, kernels, pool

    def decode(self, row: GpuRow, token: int, choice: Choice, draws: Draws) -> ChosenTokens:
        """The row's next tokens, as many as there are draws; its pages are reserved, and it grows by as many."""
        mode = mode_of([choice])
        step = MAX_UNWATCHED_STEPS if mode is None and not choice.sites else MAX_STEPS
        parts: list[StepResults] = []
        for done in range(0, len(draws), step):
            some = draws[done : done + step]
            if choice.sampled:
                assert mode is not None
                parts.append(self._draw(row, token, choice, some, mode))
            else:
                parts.append(self._take_best(row, token, choice, len(some), mode))
            row.length += len(some)
            token = max(int(parts[-1].ids[-1, 0]), 0)
        return StepResults.joined(parts).text(0, choice, dict.fromkeys(choice.sites))

    def _take_best(self, row: GpuRow, token: int, choice: Choice, steps: int, mode: ChoiceMode | None) -> StepResults:
        """One launch; its scores are looked at afterwards, all of its steps together."""
        decoded = self._decoder.decode(
            [token], row.length, steps, self._pool, row.pages.pages, scores_from=None if mode is None else 0,
            watch_residuals=bool(choice.sites),
        )  # fmt: skip
        device = self._pool.device
        ids = np.full((steps, 1), NOT_CHOSEN, np.int32)
        ids[: len(decoded.ids), 0] = decoded.ids
        records = torch.empty(1, steps, 0, dtype=torch.float64, device=device)
        if decoded.scores is not None:
            assert mode is not None
            tensors = StepTensors.empty(steps, mode, {}, device)
            tensors.set_rules([choice] * steps, np.zeros((steps, 1)))
            step, tokens = (torch.zeros(steps, dtype=torch.int32, device=device) for _ in range(2))
            self._kernels.choose(decoded.scores, tensors.rules, step, tensors.records, tokens, mode)
            records = tensors.records[:1]
        host_records, *sites = all_to_host([records, *_at_sites(decoded.residuals, choice.sites)])
        values = {site: value[:, None] for site, value in zip(sorted(choice.sites), sites, strict=True)}
        return StepResults(ids, host_records.swapaxes(0, 1), values)

    def _draw(self, row: GpuRow, token: int, choice: Choice, draws: Draws, mode: ChoiceMode) -> StepResults:
        """A launch for each step, and kernels that choose between two of them."""
        decoder, kernels, device, steps = self._decoder, self._kernels, self._pool.device, len(draws)
        tensors = StepTensors.empty(1, mode, {}, device)
        tensors.set_rules([choice], draws[None])
        pages = torch.tensor(row.pages.pages, dtype=torch.int32).to(device)
        next_token = torch.tensor([token], dtype=torch.int32).to(device)
        chosen, step, other_numbers = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(3))
        scores = torch.empty(1, decoder.shape.vocabulary, device=device)
        residuals = decoder.new_residuals(steps) if choice.sites else None
        decoder.begin()
        for number in range(steps):
            decoder.launch(
                next_token, row.length + number, 1, self._pool, pages, scores=scores,
                residuals=None if residuals is None else residuals[number],
            )  # fmt: skip
            kernels.choose(scores, tensors.rules, step, tensors.records, chosen, mode)
            kernels.advance(chosen, tensors.chosen, step, next_token, *[other_numbers] * 4)
        ids, records, *sites = all_to_host(
            [tensors.chosen[:steps], tensors.records[:steps], *_at_sites(residuals, choice.sites)]
        )
        decoder.finish(1)
        values = {site: value[:, None] for site, value in zip(sorted(choice.sites), sites, strict=True)}
        return StepResults(ids, records, values)


def _at_sites(residuals: Tensor | None, sites: frozenset[str]) -> Sequence[Tensor]:
    """What was at each of these sites, in the order of their names: (steps, hidden)."""
    if residuals is None:
        return []
    places = [match.groups() for site in sorted(sites) if (match := RESIDUAL_SITE.fullmatch(site))]
    return [residuals[:, int(layer), ("middle", "residual").index(name)] for layer, name in places]
