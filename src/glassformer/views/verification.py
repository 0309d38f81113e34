"""How far two executors differ at every site: one comparison site by site, or several in one table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

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
