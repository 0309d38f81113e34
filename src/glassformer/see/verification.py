"""Two executors fed the same rows, and how far they differ at every site. Needs no torch.

The first is the reference (`plain`, which is made of readable families); the others are compared with it. Ragged rows go
through in one pass, then grow by single tokens, then by single tokens and whole chunks together: whatever a driver may ask
of an executor. Every site of every pass is compared, so that a difference is named where it begins.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.engine.protocol import Executor, Feed, Logits, Want
from glassformer.ground.candidates import kl_divergence, log_softmax
from glassformer.ground.errors import InputError
from glassformer.ground.sites import ModelSites, Watch

NUMBER_COLUMNS = ("top-1", "KL, bits", "error", "largest", "bound")
LEGEND = "error: of the worst site, relative to its values; bound: what rounding alone may amount to"
BLOCK = re.compile(r"blocks\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class SiteDifference:
    """How far two executors' values of a site differ, in the worst of all feeds."""

    site: str
    error: float  # the root mean square of the difference, over that of the value
    largest: float  # the largest difference, over the largest value

    def worst_of(self, other: SiteDifference) -> SiteDifference:
        return SiteDifference(self.site, max(self.error, other.error), max(self.largest, other.largest))


@dataclass(frozen=True)
class Verdict:
    """The result of comparing two executors."""

    sites: tuple[SiteDifference, ...]  # in the order in which a pass meets them
    positions: int  # that were scored
    agreement: float  # the fraction of them where both have the same best token
    divergence: float  # KL divergence of the probabilities, in bits: its mean
    farthest: float  # and its largest

    @property
    def worst(self) -> SiteDifference:
        return max(self.sites, key=lambda site: site.error)

    def agrees(self, bound: float) -> bool:
        """Whether no site's error is above a bound."""
        return self.worst.error <= bound

    def to_dict(self) -> dict[str, Any]:
        """As plain data; infinity is None, since JSON has no word for it."""
        return asdict(self, dict_factory=_finite)

    def __rich__(self) -> Any:
        return draw(self)

    def __str__(self) -> str:
        """The whole table, without colors."""
        from glassformer.page.terminal import plain_text

        return plain_text(self)


@dataclass(frozen=True)
class EngineVerdict:
    """A verdict on one configuration of an engine, and the bound of its error."""

    level: str  # instruction set
    cache: str  # dtype of the KV cache
    activations: str  # what the inputs of packed weights are rounded to
    verdict: Verdict
    bound: float

    @property
    def agrees(self) -> bool:
        return self.verdict.agrees(self.bound)

    @property
    def word(self) -> str:
        return "agrees" if self.agrees else "differs"

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level, "cache": self.cache, "activations": self.activations, "agrees": self.agrees,
            "bound": self.bound, "worst": asdict(self.verdict.worst, dict_factory=_finite), **self.verdict.to_dict(),
        }  # fmt: skip


def _finite(fields: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in fields}


def draw(verdict: Verdict) -> RenderableType:
    """One comparison: each site once, with the block in which it differs most."""
    table = _table("site", "worst in", "error", "largest")
    worst: dict[str, SiteDifference] = {}
    for site in verdict.sites:
        name = BLOCK.sub("", site.site)
        worst[name] = max(worst.get(name, site), site, key=lambda difference: difference.error)
    for name, site in worst.items():
        block = BLOCK.search(site.site)
        style = "bold" if site == verdict.worst else ""
        where = f"block {block[1]}" if block else ""
        table.add_row(name, where, format_error(site.error), format_error(site.largest), style=style)
    return Group(Text(sentence(verdict)), table)


def verdicts_table(rows: Iterable[EngineVerdict]) -> Table:
    """Several comparisons with the same executor, one per line."""
    table = _table("level", "cache", "inputs", "top-1", "KL, bits", "worst block, site", "error", "bound", "")
    for row in rows:
        verdict = row.verdict
        table.add_row(
            row.level, row.cache, row.activations, f"{verdict.agreement:.1%}", format_error(verdict.divergence),
            BLOCK.sub(r"\1 ", verdict.worst.site), format_error(verdict.worst.error), format_error(row.bound),
            Text(row.word, "green" if row.agrees else "bold red"),
        )  # fmt: skip
    return table


def sentence(verdict: Verdict) -> str:
    """The comparison in one line."""
    agreement = f"the same best token at {verdict.agreement:.1%}, divergence {format_error(verdict.divergence)} bits"
    worst = f"worst site {verdict.worst.site} ({format_error(verdict.worst.error)})"
    return f"{verdict.positions} positions: {agreement}, {worst}"


def format_error(value: float) -> str:
    """
    >>> format_error(0.0), format_error(0.00123), format_error(0.01), format_error(float("inf"))
    ('0', '1.2e-3', '1e-2', '∞')
    """
    if value in (0, float("inf")):
        return "∞" if value else "0"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        table.add_column(
            name, justify="right" if name in NUMBER_COLUMNS else "left", no_wrap="site" not in name, overflow="fold"
        )
    return table


CHUNK = 12  # tokens that are fed together at the end


# How far an engine may be off, by what it rounds the inputs of quantized weights to and by the dtype of its KV cache: five
# times the worst error in SmolLM2's 30 blocks, so that rounding passes and a wrong number, which is off by about one, does
# not. Floats are only summed in another order.
FLOATS = 1e-4
ACTIVATIONS = {"q14": 1e-2, "mixed": 2e-1, "q8": 5e-1}
CACHES = {"f32": 0.0, "f16": 1e-2, "bf16": 8e-2, "q8": 4e-1}


def verify(
    reference: Executor, executor: Executor, prompts: Sequence[Sequence[int]], names: ModelSites,
    sources: Sequence[Sequence[int]] | None = None,
) -> Verdict:  # fmt: skip
    """Compare an executor with a reference, on prompts of token ids; `sources`: what an encoder reads for each.

    `names`: the sites to compare, those of the model's blueprint.
    """
    (verdict,) = verify_all(reference, [executor], prompts, names, sources)
    return verdict


def verify_all(
    reference: Executor, executors: Sequence[Executor], prompts: Sequence[Sequence[int]], names: ModelSites,
    sources: Sequence[Sequence[int]] | None = None,
) -> list[Verdict]:  # fmt: skip
    """Compare several executors with a reference, which runs only once."""
    if not prompts or not all(prompts):
        raise InputError("there is nothing to compare executors on. Give at least one prompt, each of at least one token.")
    watch = Watch(frozenset({"*"})).expanded(names)
    openings: list[tuple[Sequence[int], ...]] = [(source,) for source in sources] if sources else [() for _ in prompts]
    opened = [(executor, [executor.open(*source) for source in openings]) for executor in (reference, *executors)]
    reference_rows = opened[0][1]
    tallies = [Tally() for _ in executors]
    ids_by_row: dict[int, list[int]] = {index: list(prompt) for index, prompt in enumerate(prompts)}
    try:
        for turn in range(3):
            expected, *outputs = (
                executor.run([Feed(rows[index], ids, Want.ALL, watch=watch) for index, ids in ids_by_row.items()])
                for executor, rows in opened
            )
            for tally, logits in zip(tallies, outputs, strict=True):
                tally.add(expected, logits, [len(ids) for ids in ids_by_row.values()])
            ids_by_row = {
                index: _next_ids(prompts[index], logits, turn, index)[: reference.context - reference_rows[index].length]
                for index, logits in zip(ids_by_row, expected, strict=True)
            }
            ids_by_row = {index: ids for index, ids in ids_by_row.items() if ids}
            if not ids_by_row:
                break
    finally:
        for executor, rows in opened:
            for row in rows:
                executor.close(row)
    return [tally.verdict(names.names) for tally in tallies]


def tolerance(packed: bool, cache: str, activations: str = "q14") -> float:
    """How far an engine may be off from the plain executor in float32."""
    return max(ACTIVATIONS[activations] if packed else FLOATS, CACHES[cache])


def gpu_tolerance(kind: str, cache: str) -> float:
    """How far the GPU engine may be off; inputs are rounded to the dtype of the weights that they are multiplied with."""
    return FLOATS if (kind, cache) == ("F32", "f32") else CACHES["bf16"]


def _next_ids(prompt: Sequence[int], logits: Logits, turn: int, row: int) -> list[int]:
    """What a row is fed after its prompt: the best token; the next time, in every other row, a chunk after it."""
    chunk = prompt[: CHUNK - 1] if turn and row % 2 == 0 else []
    return [int(logits.host().argmax()), *chunk]


class Tally:
    """Sums up differences over passes."""

    def __init__(self) -> None:
        self._sites: dict[str, SiteDifference] = {}
        self._agreed: list[bool] = []
        self._divergences: list[float] = []

    def add(self, expected: Sequence[Logits], outputs: Sequence[Logits], lengths: Sequence[int]) -> None:
        """The outputs of two executors for one pass over rows of these lengths."""
        for reference, output, length in zip(expected, outputs, lengths, strict=True):
            for index in range(length):
                logits, other = reference.host(index), output.host(index)
                self._agreed.append(int(logits.argmax()) == int(other.argmax()))
                self._divergences.append(kl_divergence(log_softmax(logits), log_softmax(other)))
            for site in {*reference.sites, *output.sites}:
                error = difference(site, reference.sites, output.sites)
                self._sites[site] = error.worst_of(self._sites.get(site, error))

    def verdict(self, order: Sequence[str]) -> Verdict:
        sites = tuple(self._sites[site] for site in order if site in self._sites)
        divergences = self._divergences
        count = len(divergences)
        return Verdict(sites, count, sum(self._agreed) / count, sum(divergences) / count, max(divergences))


def difference(site: str, reference: Mapping[str, Any], output: Mapping[str, Any]) -> SiteDifference:
    """How far two executors' values of a site differ; infinitely, if one lacks it or has it in another shape."""
    if site not in reference or site not in output or tuple(reference[site].shape) != tuple(output[site].shape):
        return SiteDifference(site, math.inf, math.inf)
    expected = _to_float64(reference[site])
    error = _to_float64(output[site]) - expected
    means = (float(np.sqrt(np.square(values).mean())) for values in (error, expected))
    largest = (float(np.abs(values).max()) for values in (error, expected))
    return SiteDifference(site, _ratio(*means), _ratio(*largest))


def _to_float64(value: Any) -> npt.NDArray[np.float64]:
    """A torch tensor's values, or an array's."""
    return np.asarray(value.double().cpu() if hasattr(value, "cpu") else value, np.float64)


def _ratio(error: float, size: float) -> float:
    """An error over a size; what is no number counts as infinitely large."""
    if error == 0:
        return 0.0
    return error / size if size > 0 and math.isfinite(error) else math.inf
