"""The sites of a model: what can be read and changed, its shape, and what other libraries call it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, Paragraph, Table, TableRow
from glassformer.page.format import pluralize
from glassformer.views.view import View


@dataclass(frozen=True)
class NamedSite:
    name: str
    axes: tuple[str, ...]
    shape: tuple[int | str, ...]  # sizes, or the names of axes that a text decides
    other_names: tuple[str, ...]  # TransformerLens', then paths of modules, as nnsight has them


@dataclass(frozen=True)
class SiteNames(View):
    """Every site of a model, in the order in which a pass meets them."""

    SCHEMA = "glassformer.site-names/1"

    model: str
    model_type: str
    sites: tuple[NamedSite, ...]

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)


def draw(view: SiteNames, everything: bool = False) -> Page:
    """The first block's sites stand for those of all, unless `everything` is asked for."""
    shown = [site for site in view.sites if everything or not re.search(r"\bblocks\.[1-9]", site.name)]
    title = f"{view.model or view.model_type}: {pluralize(len(view.sites), 'site')}"
    columns = (Column("site"), Column("shape", priority=6), Column("also called"))
    rows = []
    for site in shown:
        for number, other in enumerate(site.other_names or ("",)):  # each in a row of its own: they are long
            own = ("", "") if number else (site.name, " × ".join(map(str, site.shape)))
            rows.append(TableRow((*own, other)))
    notes = () if len(shown) == len(view.sites) else (Paragraph("the other blocks have those of block 0", "dim"),)
    return Page(title, (Heading(title), Table(columns, tuple(rows)), *notes))
