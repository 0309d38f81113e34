"""The sites of models by their shape alone, written down apart from any blueprint."""

from __future__ import annotations

from glassformer.ground.sites import AFTER, BEFORE, CROSS_ATTENTION, ENCODER, ModelSites

ATTENTION = (
    "attention.input", "attention.query", "attention.key", "attention.value", "attention.pattern", "attention.heads",
    "attention.update", "middle",
)  # fmt: skip
MLP = ("mlp.input", "mlp.hidden", "mlp.update", "residual")
ROUTED_MLP = ("mlp.input", "mlp.router", "mlp.experts", "mlp.hidden", "mlp.update", "residual")


def usual_sites(blocks: int, encoder: int = 0, routed: tuple[int, ...] = ()) -> ModelSites:
    """Those of a model whose blocks have attention and an MLP; `routed`: the blocks whose MLP is a mixture of experts."""
    first = [*BEFORE, *(f"blocks.{n}.{name}" for n in range(encoder) for name in (*ATTENTION, *MLP)), "final"]
    cross = tuple(CROSS_ATTENTION) if encoder else ()
    inside = [
        f"blocks.{n}.{name}" for n in range(blocks) for name in (*ATTENTION, *cross, *(ROUTED_MLP if n in routed else MLP))
    ]
    names = (*((ENCODER + name for name in first) if encoder else ()), *BEFORE, *inside, *AFTER)
    return ModelSites(names, blocks, frozenset(f"blocks.{n}.mlp.hidden" for n in routed))
