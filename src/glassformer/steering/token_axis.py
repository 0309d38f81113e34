"""Which sites hold one array of numbers for each token, and along which axis the tokens lie."""

from __future__ import annotations

from glassformer.blueprints import Blueprint
from glassformer.ground.errors import SiteError
from glassformer.ground.sites import check_numbered, expand


def token_site(blueprint: Blueprint, site: str, model: str) -> tuple[int, tuple[int, ...]]:
    """The axis of a site's tokens, without the batch, and the shape of one token's numbers there.

    >>> token_site(blueprint, "blocks.0.attention.heads", "tiny")  # (heads, length, head_size)
    (1, (4, 16))
    """
    expand([site], *blueprint.block_counts)  # which refuses a site that does not exist, and suggests one
    if site not in blueprint.sites:
        raise SiteError(f"{model} has no site {site!r}.")
    check_numbered(site, blueprint.routed_blocks)
    shape = blueprint.sites[site][1:]
    axes = [axis for axis, size in enumerate(shape) if isinstance(size, str)]
    if len(axes) != 1:
        raise SiteError(f"{site!r} has no numbers of its own for each token. Name another, such as blocks.3.residual.")
    return axes[0], tuple(size for size in shape if isinstance(size, int))
