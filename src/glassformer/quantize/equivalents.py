"""Models as GGUF files have them: with the same results, under another family's names or with larger tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from glassformer.blueprints import Config, read_config
from glassformer.checkpoint.stored_tensors import Layout

Rows: TypeAlias = Callable[[int, int], Any]
Weights: TypeAlias = Mapping[str, Callable[[Layout | None], Rows]]

NOT_GRANITES = ("layer_types", "position_embedding_type", "num_local_experts", "num_experts_per_tok")
JOINED, OUTPUT = ".shared_mlp.input_linear.", ".shared_mlp.output_linear."
BESIDE = "model.embed_tokens_per_layer.weight"


def as_in_files(config: Config, weights: Weights) -> tuple[Config, Weights]:
    """A model as files have it; most are as they are."""
    c: Any = config
    if c.model_type == "granitemoehybrid" and not c.num_experts and "linear_attention" not in c.layer_types:
        return _granite(c, weights)
    if c.model_type == "gemma3n_text" and c.vocab_size_per_layer_input < c.vocab_size:
        larger = {BESIDE: _with_first_row(weights[BESIDE], c.vocab_size_per_layer_input)}
        return replace(c, vocab_size_per_layer_input=c.vocab_size), {**weights, **larger}
    return config, weights


def _granite(c: Any, weights: Weights) -> tuple[Config, Weights]:
    """A Granite 4 whose layers all attend, and that has no experts, as the Granite that it is."""
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


def _with_first_row(open_rows: Callable[[Layout | None], Rows], count: int) -> Callable[[Layout | None], Rows]:
    """A table's rows, and behind them its first one, which tokens have that are of no text."""

    def opened(layout: Layout | None) -> Rows:
        rows = open_rows(layout)

        def padded(first: int, last: int) -> Any:
            found = [rows(first, min(last, count))] if first < count else []
            missing = last - max(first, count)
            return np.concatenate([*found, *([np.repeat(rows(0, 1), missing, 0)] if missing > 0 else [])])

        return padded

    return opened
