"""To which experts each token of a text goes: the shares that the routers gave, as they were in this pass.

Shapes: shares, scores (length, experts).
"""

from __future__ import annotations

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.ground.operations import operation
from glassformer.ground.progress import Progress
from glassformer.observe.activations import Activations
from glassformer.observe.protocols import Floats
from glassformer.views.experts import ExpertLayer, ExpertLoad, Experts, ExpertShare

ROUTERS, SHARES = "blocks.{}.mlp.router", "blocks.{}.mlp.experts"


@operation(route="experts", example='glass experts -m allenai/OLMoE-1B-7B-0924 --raw "The capital of France is"')
def experts(reading: Activations, *, progress: Progress | None = None) -> Experts:
    """Show to which experts of a mixture each token goes, and how evenly the tokens are spread over them."""
    model = reading.model
    layers = model.blueprint.routed_blocks
    if not layers:
        raise InputError(
            f"{model.name} ({model.config.model_type}) has no experts: each token goes through the same MLP. Take a mixture "
            "of experts, such as a mixtral, olmoe or qwen3_moe model."
        )
    sites = [name.format(layer) for layer in layers for name in (ROUTERS, SHARES)]
    parts: dict[str, list[Floats]] = {site: [] for site in sites}
    for chunk in reading.chunks(*sites, progress=progress):
        for site in sites:
            parts[site].append(chunk.sites[site])
    values = {site: np.concatenate(pieces) for site, pieces in parts.items()}
    return Experts(
        model.name, reading.texts, model.config.num_experts, model.config.num_experts_per_tok,
        tuple(_layer(layer, values[SHARES.format(layer)], values[ROUTERS.format(layer)]) for layer in layers),
    )  # fmt: skip


def _layer(layer: int, shares: Floats, scores: Floats) -> ExpertLayer:
    tokens = []
    for own, logits in zip(shares, scores, strict=True):
        order = sorted(np.flatnonzero(own).tolist(), key=lambda expert: (-abs(own[expert]), expert))
        tokens.append(tuple(ExpertShare(expert, float(own[expert]), float(logits[expert])) for expert in order))
    counts, sums = (shares != 0).sum(0), np.abs(shares).sum(0)
    total = float(sums.sum()) or 1.0
    loads = (ExpertLoad(expert, int(counts[expert]), float(sums[expert]) / total) for expert in range(shares.shape[1]))
    return ExpertLayer(layer, tuple(tokens), tuple(loads))
