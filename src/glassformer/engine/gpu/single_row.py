"""The next tokens of a single row by the persistent kernel, where it fits a model.

It reads its weights as one stream, and so has a second copy of them. Where the blueprint, the weights, the card or its
memory do not fit, one sentence says why.

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

from glassformer.blueprints import Blueprint
from glassformer.engine.gpu.device_steps import (
    MAX_STEPS,
    PendingResults,
    PendingTexts,
    StepResults,
    StepTensors,
    last_chosen,
    mode_of,
    set_last_chosen,
)  # fmt: skip
from glassformer.engine.gpu.graphs import capture, power_of_two
from glassformer.engine.gpu.kernels.choosing import ChoiceMode
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix
from glassformer.engine.gpu.kv_pool import GpuRow
from glassformer.engine.gpu.passes import HostCopies, to_device
from glassformer.engine.gpu.persistent.decoder import MAX_STEPS as MAX_LAUNCH_STEPS
from glassformer.engine.gpu.persistent.decoder import DecoderWeights, PersistentDecoder, plan_schedule
from glassformer.engine.gpu.persistent.kernel import Card
from glassformer.engine.gpu.persistent.layout import DecoderLayout, read_layout, rotation_table
from glassformer.engine.gpu.persistent.schedule import Schedule
from glassformer.engine.gpu.weights import DeviceWeights
from glassformer.engine.protocol import BEST, NOT_CHOSEN, Choice, Draws

RESIDUAL_SITE = re.compile(r"blocks\.(\d+)\.(middle|residual)")


def can_read(sites: frozenset[str]) -> bool:
    """Whether the kernel keeps what is at these sites: the residual stream."""
    return all(RESIDUAL_SITE.fullmatch(site) for site in sites)


def fitting_layout(blueprint: Blueprint, weights: DeviceWeights, cache: str, card: Card) -> tuple[DecoderLayout, Schedule]:
    """The layout of a model that the persistent kernel can decode, and how; else an error that says why it cannot."""
    layout = read_layout(blueprint)
    kind = weights.part(layout.embedding).kind
    return layout, plan_schedule(layout.shape, lambda *place: _parts(layout, weights, *place), kind, cache, card)


def _parts(layout: DecoderLayout, weights: DeviceWeights, matrix: str, layer: int) -> list[DeviceMatrix]:
    return [weights.part(name) for name in layout.parts(matrix, layer)]


def decoder_weights(layout: DecoderLayout, weights: DeviceWeights, context: int) -> DecoderWeights:
    """What the kernel makes a copy of."""

    def on_device(values: object) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(weights.device)

    head_norms = [[weights.floats(name) for name in layer.head_norms] for layer in layout.layers]
    biases = [weights.floats(*layer.qkv_biases) for layer in layout.layers if layer.qkv_biases]
    return DecoderWeights(
        lambda *place: _parts(layout, weights, *place),
        weights.part(layout.embedding),
        norms=on_device([weights.floats(name) for name in layout.norms]),
        rotation=on_device(rotation_table(layout.rope, context, layout.shape.head_size)),
        head_norms=on_device(head_norms) if layout.shape.head_norms else None,
        qkv_bias=on_device(biases) if layout.shape.qkv_bias else None,
    )


class Chooser:
    """Kernels that choose by scores at a fixed address, captured once; the best, unless other rules are set."""

    def __init__(self, kernels: Any, rows: int, vocabulary: int, mode: ChoiceMode, device: torch.device) -> None:
        self._kernels, self._mode = kernels, mode
        self.scores = torch.zeros(rows, vocabulary, device=device)
        self.tensors = StepTensors.empty(rows, mode, {}, device)
        self.tensors.set_rules([BEST] * rows, np.zeros((rows, 1)))
        self.next_tokens, self._step, self._tokens, self._other_numbers = (
            torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(4)
        )
        self._graph: Any = capture(self._run)[0] if device.type == "cuda" else None

    def begin(self) -> None:
        """Count steps from the first again."""
        self._step.zero_()

    def __call__(self) -> None:
        """Choose, and go on to the next step."""
        if self._graph is None:
            self._run()
        else:
            self._graph.replay()

    def _run(self) -> None:
        tensors, step = self.tensors, self._step
        self._kernels.choose(self.scores, tensors.rules, step, tensors.records, self._tokens, self._mode)
        self._kernels.advance(self._tokens, tensors.chosen, step, self.next_tokens, *[self._other_numbers] * 4)


class SingleRowSteps:
    """Queues steps of one row at a time with the persistent kernel."""

    def __init__(self, decoder: PersistentDecoder, kernels: Any) -> None:
        self._decoder, self._kernels = decoder, kernels
        self._choosers: dict[tuple[int, ChoiceMode, bool], Chooser] = {}  # by rows, kernels, and whether they draw

    def enqueue(self, row: GpuRow, token: int | None, choice: Choice, draws: Draws, pool: Tensor) -> PendingTexts:
        """Queue the row's next tokens, as many as there are draws; its pages are reserved, and it grows by as many.

        Without `token`, it goes on from the one that was chosen last.
        """
        mode = mode_of([choice])
        step = MAX_LAUNCH_STEPS if mode is None and not choice.sites else MAX_STEPS
        pages = to_device(np.array(row.pages.pages, np.int32), pool.device)
        if token is not None:
            row.last_chosen = to_device(np.array([token], np.int32), pool.device), 0
            self._decoder.begin()
        parts: list[PendingResults] = []
        for done in range(0, len(draws), step):
            some, first = draws[done : done + step], last_chosen([row])
            if choice.sampled:
                assert mode is not None
                parts.append(self._draw(row, first, pages, choice, some, mode, pool))
            else:
                parts.append(self._take_best(row, first, pages, choice, len(some), mode, pool))
            row.length += len(some)
        return lambda: StepResults.joined([part() for part in parts]).texts([choice], dict.fromkeys(choice.sites))

    def _chooser(self, rows: int, mode: ChoiceMode, sampled: bool, device: torch.device) -> Chooser:
        key = (rows, mode, sampled)
        if key not in self._choosers:
            self._choosers[key] = Chooser(self._kernels, rows, self._decoder.shape.vocabulary, mode, device)
        chooser = self._choosers[key]
        chooser.begin()
        return chooser

    def _take_best(
        self, row: GpuRow, first: Tensor, pages: Tensor, choice: Choice, steps: int, mode: ChoiceMode | None, pool: Tensor
    ) -> PendingResults:
        """One launch; its scores are looked at afterwards, all of its steps together."""
        decoder, scores = self._decoder, None
        residuals = decoder.new_residuals(steps) if choice.sites else None
        watched = _at_sites(residuals, choice.sites)
        if mode is not None:
            chooser = self._chooser(power_of_two(steps, 1), mode, False, pool.device)
            scores, watched = chooser.scores, [*watched, chooser.tensors.records[0, :steps]]
        decoder.launch(first, row.length, steps, pool, pages, scores=scores, residuals=residuals)
        if mode is not None:
            chooser()
        results = decoder.results(steps)
        set_last_chosen([row], results[-1:])
        copies = HostCopies([results, *watched])

        def wait() -> StepResults:
            numbers, *values = copies.wait()
            chosen = decoder.chosen(numbers.tolist())
            ids = np.full((steps, 1), NOT_CHOSEN, np.int32)
            ids[: len(chosen), 0] = chosen
            records = np.empty((steps, 0)) if mode is None else values.pop()
            return StepResults(ids, records[:, None], _by_site(values, choice.sites))

        return wait

    def _draw(
        self, row: GpuRow, first: Tensor, pages: Tensor, choice: Choice, draws: Draws, mode: ChoiceMode, pool: Tensor
    ) -> PendingResults:
        """A launch for each step, and kernels that choose between two of them."""
        decoder, steps = self._decoder, len(draws)
        chooser = self._chooser(1, mode, True, pool.device)
        tensors, next_token = chooser.tensors, chooser.next_tokens
        tensors.set_rules([choice], draws[None])
        next_token.copy_(first)
        residuals = decoder.new_residuals(steps) if choice.sites else None
        for step in range(steps):
            step_residuals = None if residuals is None else residuals[step]
            decoder.launch(next_token, row.length + step, 1, pool, pages, scores=chooser.scores, residuals=step_residuals)
            chooser()
        set_last_chosen([row], next_token)
        copies = HostCopies(
            [decoder.results(1), tensors.chosen[:steps], tensors.records[:steps], *_at_sites(residuals, choice.sites)]
        )

        def wait() -> StepResults:
            numbers, ids, records, *sites = copies.wait()
            decoder.chosen(numbers.tolist())
            return StepResults(ids, records, _by_site(sites, choice.sites))

        return wait


def _by_site(values: Sequence[Any], sites: frozenset[str]) -> dict[str, Any]:
    """What was read at each site: (steps, 1, hidden)."""
    return {site: value[:, None] for site, value in zip(sorted(sites), values, strict=True)}


def _at_sites(residuals: Tensor | None, sites: frozenset[str]) -> Sequence[Tensor]:
    """What was at each of these sites, in the order of their names: (steps, hidden)."""
    if residuals is None:
        return []
    places = [match.groups() for site in sorted(sites) if (match := RESIDUAL_SITE.fullmatch(site))]
    return [residuals[:, int(layer), ("middle", "residual").index(name)] for layer, name in places]
