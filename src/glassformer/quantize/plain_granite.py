"""A Granite 4 whose layers all attend, and that has no experts, as the Granite that it is: files call it so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from glassformer.blueprints import Config, read_config
from glassformer.checkpoint.stored_tensors import Layout

Rows: TypeAlias = Callable[[int, int], Any]
Weights: TypeAlias = Mapping[str, Callable[[Layout | None], Rows]]

NOT_GRANITES = ("layer_types", "position_embedding_type", "num_local_experts", "num_experts_per_tok")
JOINED, OUTPUT = ".shared_mlp.input_linear.", ".shared_mlp.output_linear."


def as_granite(config: Config, weights: Weights) -> tuple[Config, Weights]:
    """Such a model under the other family's names, with its gate and its other half apart; any other as it is."""
    c: Any = config
    if c.model_type != "granitemoehybrid" or c.num_experts or "linear_attention" in c.layer_types:
        return config, weights
    inner = c.shared_intermediate_size
    own = {key: value for key, value in c.to_dict().items() if key not in NOT_GRANITES}
    granite = read_config({**own, "model_type": "granite", "intermediate_size": inner})
    found: dict[str, Callable[[Layout | None], Rows]] = {}
    for name, open_rows in weights.items():
        if JOINED in name:
            found[name.replace(JOINED, ".mlp.gate_proj.")] = open_rows
            found[name.replace(JOINED, ".mlp.up_proj.")] = _behind(open_rows, inner)
        else:
            found[name.replace(OUTPUT, ".mlp.down_proj.")] = open_rows
    return granite, found


def _behind(open_rows: Callable[[Layout | None], Rows], skipped: int) -> Callable[[Layout | None], Rows]:
    def opened(layout: Layout | None) -> Rows:
        rows = open_rows(layout)
        return lambda first, last: rows(skipped + first, skipped + last)

    return opened
