"""The hooks that published dictionaries name, as sites: TransformerLens' names, and modules of the transformers library."""

from __future__ import annotations

import re
from collections.abc import Mapping

from glassformer.blueprints.synonyms import IN_BLOCK

HOOKS: Mapping[str, str] = {  # in block N; what files name is what they were trained on, whatever a family makes of it
    **IN_BLOCK, "hook_mlp_in": "mlp.input", "ln2.hook_normalized": "mlp.input", "mlp.hook_out": "mlp.update",
}  # fmt: skip


def hook_of_site(site: str) -> str:
    """TransformerLens' name of a site; the site's own where it has none.

    >>> hook_of_site("blocks.8.residual"), hook_of_site("final")
    ('blocks.8.hook_resid_post', 'final')
    """
    block, _, name = site.partition(".")[2].partition(".")
    hook = next((hook for hook, known in HOOKS.items() if known == name), None)
    return f"blocks.{block}.{hook}" if site.startswith("blocks.") and hook is not None else site


def site_of_hook(hook: str) -> str | None:
    """The site that a hook's name means; None where it is none that is known.

    >>> site_of_hook("blocks.8.hook_resid_pre"), site_of_hook("layers.8"), site_of_hook("blocks.3.residual")
    ('blocks.7.residual', 'blocks.8.residual', 'blocks.3.residual')
    """
    if hook in ("hook_embed", "blocks.0.hook_resid_pre", "embedding"):
        return "embedding"
    if match := re.fullmatch(r"blocks\.(\d{1,5})\.(.+)", hook):
        number, name = int(match[1]), match[2]
        if name == "hook_resid_pre":
            return f"blocks.{number - 1}.residual"
        return f"blocks.{number}.{HOOKS.get(name, name)}" if name in HOOKS or "hook" not in name else None
    if match := re.fullmatch(r"(?:model\.|transformer\.)?(?:layers|h)\.(\d{1,5})(\.mlp)?", hook):
        return f"blocks.{match[1]}.{'mlp.update' if match[2] else 'residual'}"
    return hook if hook.startswith("encoder.") else None
