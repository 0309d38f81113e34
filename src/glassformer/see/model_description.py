"""What a model is, which tasks its head is for, and the sites where it can be read and changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from glassformer.blueprints import Blueprint
from glassformer.ground.operations import operation
from glassformer.ground.sites import axes
from glassformer.page.document import Column, Page, Paragraph, Table, TableRow
from glassformer.page.format import pluralize
from glassformer.see.protocols import ModelLike
from glassformer.see.view import View

Architecture: TypeAlias = Literal["decoder", "encoder", "encoder-decoder"]


@dataclass(frozen=True)
class TaskFit:
    """A task, and whether the model is for it."""

    name: str
    about: str
    fits: bool
    needs: str  # the head that it is for, in words
    suggested: str  # a model that has it


@dataclass(frozen=True)
class ModelDescription(View):
    """A model in a few words and numbers: what can be asked of it, and what can be looked at in it."""

    SCHEMA = "glassformer.model/1"

    model: str
    family: str  # its model_type
    architecture: Architecture
    head: str  # in words
    writes: bool  # whether it generates text
    context: int  # tokens that it can read
    blocks: int  # of an encoder-decoder: the decoder's
    encoder_blocks: int  # of an encoder-decoder
    heads: int  # of each block's attention
    one_stream: bool  # whether blocks add to one stream; else no layer's state has a prediction of its own
    chat_template: bool
    thinking: bool  # whether its template can switch thinking on
    mask_token: str | None
    tasks: tuple[TaskFit, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # in force where a request sets none; empty: it writes no text

    def page(self, everything: bool = False) -> Page:
        encoder = f"{pluralize(self.encoder_blocks, 'encoder block')}, " if self.encoder_blocks else ""
        about = (
            f"{self.model} ({self.family}): {self.architecture} with {self.head}, {encoder}"
            f"{pluralize(self.blocks, 'block')} of {pluralize(self.heads, 'head')}, reads {pluralize(self.context, 'token')}"
        )
        rows = [TableRow((task.name, task.about), "strong" if task.fits else "dim") for task in self.tasks]
        return Page(self.model, (Paragraph(about), Table((Column("task"), Column("what it gives")), tuple(rows))))


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
        """The first block's sites stand for those of all, unless `everything` is asked for."""
        shown = [site for site in self.sites if everything or not re.search(r"\bblocks\.[1-9]", site.name)]
        title = f"{self.model or self.model_type}: {pluralize(len(self.sites), 'site')}"
        columns = (Column("site"), Column("shape", priority=6), Column("also called"))
        rows = []
        for site in shown:
            for index, other in enumerate(site.other_names or ("",)):  # each in a row of its own: they are long
                first_cells = ("", "") if index else (site.name, " × ".join(map(str, site.shape)))
                rows.append(TableRow((*first_cells, other)))
        notes = () if len(shown) == len(self.sites) else (Paragraph("the other blocks have those of block 0", "dim"),)
        return Page.titled(title, Table(columns, tuple(rows)), *notes)


def site_names(blueprint: Blueprint, name: str = "") -> SiteNames:
    """What can be read and changed in a model, and what other libraries call it."""
    others: dict[str, list[str]] = {}
    for other, site in blueprint.synonyms.sites.items():
        others.setdefault(site, []).append(other)
    sites = tuple(
        NamedSite(site, axes(site), shape, tuple(sorted(others.get(site, ()), key=_order)))
        for site, shape in blueprint.sites.items()
    )
    return SiteNames(name, blueprint.model_type, sites)


def _order(name: str) -> tuple[bool, bool]:
    """TransformerLens' full names first, then its short ones, then paths of modules."""
    return name.endswith((".input", ".output")), "hook_" not in name


@operation(route="sites", is_property=True, passes=False)
def sites(model: ModelLike) -> SiteNames:
    """Show everything that can be read and changed, with its shape and what other libraries call it."""
    return site_names(model.blueprint, model.name)
