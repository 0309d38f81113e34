"""Multipliers that GGUF has no fields for, as parts of the matrices before or behind them: those of Falcon-H1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from glassformer.blueprints import Config
from glassformer.blueprints.falcon_h1 import MULTIPLIERS
from glassformer.checkpoint.stored_tensors import Layout
from glassformer.ground.errors import InputError
from glassformer.quantize.gguf_metadata import ADVICE

Rows: TypeAlias = Callable[[int, int], Any]
Weights: TypeAlias = Mapping[str, Callable[[Layout | None], Rows]]


def folded(config: Config, weights: Weights, name: str) -> tuple[Config, Weights]:
    """A model whose multipliers are all one, with the same results; other families as they are."""
    if config.model_type != "falcon_h1":
        return config, weights
    c: Any = config
    if c.tie_word_embeddings and c.embedding_multiplier != c.lm_head_multiplier:
        raise InputError(
            f"{name}: GGUF has no place for multipliers of embeddings and scores that differ, where both are one table. "
            f"{ADVICE}"
        )
    factors = _factors(c)
    scaled = {
        weight: _scaled(read, factor) if (factor := factors.get(".".join(weight.split(".")[-3:]))) is not None else read
        for weight, read in weights.items()
    }
    ones = {**dict.fromkeys(MULTIPLIERS, 1.0), "ssm_multipliers": [1.0] * 5, "mlp_multipliers": [1.0] * 2}
    return replace(config, **ones), {**weights, **scaled}  # type: ignore[arg-type]


def _factors(c: Any) -> dict[str, Any]:
    """What each row of a tensor is multiplied by, by the end of its name."""
    s, (of_gate, of_update) = c.state_space, c.mlp_multipliers
    keys = s.groups * s.key_size
    rows = np.repeat(np.float32(s.multipliers), (s.inner, s.inner, keys, keys, s.heads))
    both = {  # of a matrix and its bias, which are behind a multiplier of their input alike
        "self_attn.k_proj": c.key_multiplier, "self_attn.o_proj": c.attention_out_multiplier,
        "mamba.in_proj": rows, "mamba.out_proj": c.ssm_out_multiplier, "feed_forward.gate_proj": of_gate,
        "feed_forward.down_proj": of_update, "self_attn.q_proj": 1.0, "self_attn.v_proj": 1.0,
    }  # fmt: skip
    before = dict.fromkeys((f"self_attn.{part}_proj" for part in "qkv"), c.attention_in_multiplier)
    before["mamba.in_proj"] = c.ssm_in_multiplier
    whole = {f"{module}.weight": factor * before.get(module, 1.0) for module, factor in both.items()}
    whole |= {f"{module}.bias": factor for module, factor in both.items()}
    return {**whole, "model.embed_tokens.weight": c.embedding_multiplier, "lm_head.weight": c.lm_head_multiplier}


def _scaled(open_rows: Callable[[Layout | None], Rows], factor: Any) -> Callable[[Layout | None], Rows]:
    def opened(layout: Layout | None) -> Rows:
        read = open_rows(layout)

        def rows(start: int, end: int) -> Any:
            values = read(start, end)
            if np.ndim(factor) == 0:
                return values * np.float32(factor)
            alone = len(values) != end - start or values.shape[-1] == len(factor)  # a vector is one row
            return values * (factor if alone else factor[start:end, None])

        return rows

    return opened
