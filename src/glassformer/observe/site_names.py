"""The sites of a model with their other names, from its blueprint alone."""

from __future__ import annotations

from glassformer.blueprints import Blueprint
from glassformer.ground.sites import axes
from glassformer.views.site_names import NamedSite, SiteNames


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
