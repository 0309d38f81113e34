"""How far two executors are apart, in the terminal: one comparison site by site, or several beside each other."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from glassformer.engine.verify import Checked, Difference, Verdict

NUMBERS = ("top-1", "KL", "error", "largest", "bound")  # columns of them
FOOT = "error: how far the worst site is off, over its own size; bound: what rounding alone may come to"
BLOCK = re.compile(r"blocks\.(\d+)\.")


def picture(found: Verdict) -> RenderableType:
    """One comparison: each name of a site, with the block in which it is worst."""
    table = _table("site", "worst in", "error", "largest")
    worst: dict[str, Difference] = {}
    for one in found.sites:
        name = BLOCK.sub("", one.site)
        worst[name] = max(worst.get(name, one), one, key=lambda each: each.error)
    for name, one in worst.items():
        block = BLOCK.search(one.site)
        style = "bold" if one == found.worst else ""
        where = f"block {block[1]}" if block else ""
        table.add_row(name, where, amount(one.error), amount(one.largest), style=style)
    return Group(Text(sentence(found)), table)


def verdicts(rows: Iterable[Checked]) -> Table:
    """Several comparisons with the same executor, one to a line."""
    table = _table("level", "cache", "inputs", "top-1", "KL", "worst block, site", "error", "bound", "")
    for row in rows:
        found = row.verdict
        table.add_row(
            row.level, row.cache, row.activations, f"{found.agreement:.1%}", amount(found.divergence),
            BLOCK.sub(r"\1 ", found.worst.site), amount(found.worst.error), amount(row.bound),
            Text(row.word, "green" if row.agrees else "bold red"),
        )  # fmt: skip
    return table


def sentence(found: Verdict) -> str:
    """The comparison in a line."""
    return (
        f"{found.positions} positions: the same best token at {found.agreement:.1%}, divergence {amount(found.divergence)} "
        f"nats, worst site {found.worst.site} ({amount(found.worst.error)})"
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
