"""To which experts each token of a text goes: the shares that the routers gave, as they were in this pass.

Shapes: shares, scores (length, experts).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassformer.ground.errors import InputError
from glassformer.ground.operations import operation
from glassformer.ground.progress import Progress
from glassformer.page.document import Column, Grid, Heading, Page, PagePart, Paragraph, Table, TableRow
from glassformer.page.format import format_percent, pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.view import Floats, View

MAX_BUSIEST = 3  # experts listed for each layer, unless everything is shown


@dataclass(frozen=True)
class ExpertShare:
    """One of the experts that a token goes to."""

    expert: int
    share: float  # by which its output is multiplied
    score: float  # the router's, a logit


@dataclass(frozen=True)
class ExpertLoad:
    """What one expert has to do in a layer."""

    expert: int
    tokens: int  # that go to it
    share: float  # of all that the layer's experts add, its part: from 0 to 1


@dataclass(frozen=True)
class ExpertLayer:
    """One layer that has experts."""

    layer: int
    tokens: tuple[tuple[ExpertShare, ...], ...]  # for each token, the experts that it goes to, largest share first
    loads: tuple[ExpertLoad, ...]  # of all experts, by index


@dataclass(frozen=True)
class Experts(View):
    """To which experts each token of a text goes, layer by layer."""

    SCHEMA = "glassformer.experts/1"

    model: str
    tokens: tuple[str, ...]
    experts: int  # of each layer
    chosen: int  # for each token
    layers: tuple[ExpertLayer, ...]

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: where each token went, {self.chosen} of {self.experts} experts"
        parts: list[PagePart] = [
            Paragraph("each cell is the expert with the largest share of a token's update; shades are that share", "dim"),
            Grid(
                tuple(str(layer.layer) for layer in self.layers),
                tuple(map(visible, self.tokens)),
                tuple(tuple(_first(token).share for token in layer.tokens) for layer in self.layers),
                tuple(tuple(str(_first(token).expert) for token in layer.tokens) for layer in self.layers),
                tuple(tuple(share_list(token) for token in layer.tokens) for layer in self.layers),
                all_columns=everything,
            ),
            Heading("how evenly the tokens are spread"),
            _loads_table(self, everything),
            Paragraph(
                "tokens: how many go to an expert; in brackets, its part of all that the layer's experts add", "dim"
            ),
        ]  # fmt: skip
        for position in range(len(self.tokens)) if everything else (len(self.tokens) - 1,):
            parts += token_parts(self, position)
        return Page.titled(title, *parts)

    def __repr__(self) -> str:
        return f"Experts({len(self.layers)} layers × {len(self.tokens)} tokens: {self.chosen} of {self.experts} experts)"


def token_parts(view: Experts, position: int) -> list[PagePart]:
    """One token, layer by layer."""
    rows = tuple(
        TableRow((str(layer.layer), share_list(layer.tokens[position]), _first(layer.tokens[position]).share))
        for layer in view.layers
    )
    columns = (Column("layer", "number"), Column("experts", wraps=True), Column("largest share", "bar", priority=5))
    return [Heading(f"{visible(view.tokens[position])} (position {position}) goes to"), Table(columns, rows)]


def share_list(token: tuple[ExpertShare, ...]) -> str:
    """The experts of a token with their shares."""
    return " · ".join(f"{choice.expert}: {format_percent(choice.share)}" for choice in token) or "none"


def _first(token: tuple[ExpertShare, ...]) -> ExpertShare:
    return token[0] if token else ExpertShare(-1, 0.0, 0.0)  # where a change has switched all of them off


def _loads_table(view: Experts, everything: bool) -> Table:
    columns = (Column("layer", "number"), Column("experts used", "number"), Column("busiest", wraps=True))
    rows = []
    for layer in view.layers:
        used = sorted((load for load in layer.loads if load.tokens), key=lambda load: (-load.tokens, load.expert))
        shown = used if everything else used[:MAX_BUSIEST]
        busiest = " · ".join(
            f"{load.expert}: {pluralize(load.tokens, 'token')} ({format_percent(load.share)})" for load in shown
        )
        rows.append(TableRow((str(layer.layer), f"{len(used)} of {view.experts}", busiest)))
    return Table(columns, tuple(rows))


ROUTERS, SHARES = "blocks.{}.mlp.router", "blocks.{}.mlp.experts"


@operation(route="experts", example='glass experts -m allenai/OLMoE-1B-7B-0924 --raw "The capital of France is"')
def experts(reading: Activations, *, progress: Progress | None = None) -> Experts:
    """Show to which experts of a mixture each token goes, and how evenly the tokens are spread over them."""
    model = reading.model
    model.config.check_equations("the shares of experts")
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
    for given, logits in zip(shares, scores, strict=True):
        order = sorted(np.flatnonzero(given).tolist(), key=lambda expert: (-abs(given[expert]), expert))
        tokens.append(tuple(ExpertShare(expert, float(given[expert]), float(logits[expert])) for expert in order))
    counts, sums = (shares != 0).sum(0), np.abs(shares).sum(0)
    total = float(sums.sum()) or 1.0
    loads = (ExpertLoad(expert, int(counts[expert]), float(sums[expert]) / total) for expert in range(shares.shape[1]))
    return ExpertLayer(layer, tuple(tokens), tuple(loads))
