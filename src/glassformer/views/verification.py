"""How far two executors are apart at every site: one comparison site by site, or several beside each other."""

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


@dataclass(frozen=True, slots=True)
class Difference:
    """How far apart two values of a site are, where they are farthest apart."""

    site: str
    error: float  # the root mean square of the difference, over that of the value; in the worst of all feeds
    largest: float  # the largest difference, over the largest value; in the worst of all feeds

    def joined(self, other: Difference) -> Difference:
        return Difference(self.site, max(self.error, other.error), max(self.largest, other.largest))


@dataclass(frozen=True)
class Verdict:
    """What came of comparing two executors."""

    sites: tuple[Difference, ...]  # in the order in which a pass meets them
    positions: int  # that were scored
    agreement: float  # the share of them where both have the same best token
    divergence: float  # Kullback–Leibler, of the probabilities, in nats: its mean
    farthest: float  # and its largest

    @property
    def worst(self) -> Difference:
        return max(self.sites, key=lambda one: one.error)

    def agrees(self, bound: float) -> bool:
        """Whether no site's error is above a bound."""
        return self.worst.error <= bound

    def to_dict(self) -> dict[str, Any]:
        """As plain data; what is infinite is None, for JSON has no word for it."""
        return asdict(self, dict_factory=_finite)

    def __rich__(self) -> Any:

        return draw(self)

    def __str__(self) -> str:
        """The whole draw, without colours."""
        from glassformer.page.terminal import plain

        return plain(self)


@dataclass(frozen=True)
class Checked:
    """A verdict on one way of running an engine, and the bound that it is held against."""

    level: str  # of instructions
    cache: str  # what keys and values were kept in
    activations: str  # what inputs of packed weights were rounded to
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


NUMBERS = ("top-1", "KL", "error", "largest", "bound")  # columns of them
FOOT = "error: how far the worst site is off, over its own size; bound: what rounding alone may come to"
BLOCK = re.compile(r"blocks\.(\d+)\.")


def draw(verdict: Verdict) -> RenderableType:
    """One comparison: each name of a site, with the block in which it is worst."""
    table = _table("site", "worst in", "error", "largest")
    worst: dict[str, Difference] = {}
    for one in verdict.sites:
        name = BLOCK.sub("", one.site)
        worst[name] = max(worst.get(name, one), one, key=lambda each: each.error)
    for name, one in worst.items():
        block = BLOCK.search(one.site)
        style = "bold" if one == verdict.worst else ""
        where = f"block {block[1]}" if block else ""
        table.add_row(name, where, amount(one.error), amount(one.largest), style=style)
    return Group(Text(sentence(verdict)), table)


def verdicts(rows: Iterable[Checked]) -> Table:
    """Several comparisons with the same executor, one to a line."""
    table = _table("level", "cache", "inputs", "top-1", "KL", "worst block, site", "error", "bound", "")
    for row in rows:
        verdict = row.verdict
        table.add_row(
            row.level, row.cache, row.activations, f"{verdict.agreement:.1%}", amount(verdict.divergence),
            BLOCK.sub(r"\1 ", verdict.worst.site), amount(verdict.worst.error), amount(row.bound),
            Text(row.word, "green" if row.agrees else "bold red"),
        )  # fmt: skip
    return table


def sentence(verdict: Verdict) -> str:
    """The comparison in a line."""
    return (
        f"{verdict.positions} positions: the same best token at {verdict.agreement:.1%}, divergence {amount(verdict.divergence)} "
        f"nats, worst site {verdict.worst.site} ({amount(verdict.worst.error)})"
    )


def amount(value: float) -> str:
    """
    >>> amount(0.0), amount(0.00123), amount(0.01), amount(float("inf"))
    ('0', '1.2e-3', '1e-2', '∞')
    """
    if value in (0, float("inf")):
        return "∞" if value else "0"
    digits, _, power = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for name in columns:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap="site" not in name, overflow="fold")
    return table
