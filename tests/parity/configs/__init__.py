"""Tiny configs of every family, and random ones: one file for each shape of model. Needs neither torch nor the reference."""

from __future__ import annotations

from typing import Any

from tests.parity.configs import decoders, encoder_decoders, encoders, experts, recurrent
from tests.parity.configs.decoders import LLAMA3_ROPE, ROPES, SEVERAL_STREAMS

GROUPS = (decoders, recurrent, experts, encoders, encoder_decoders)
TINY: dict[str, dict[str, Any]] = {family: tiny for group in GROUPS for family, tiny in group.TINY.items()}
HEADS: dict[str, tuple[str, ...]] = {family: heads for group in GROUPS for family, heads in group.HEADS.items()}
USUAL_HEADS = ("causal", "masked", "seq2seq", "sequence")  # the first of these that a family has is its main one
MAIN = {family: next(head for head in USUAL_HEADS if head in heads) for family, heads in HEADS.items()}
RANDOM = {family: draw for group in GROUPS for family, draw in group.RANDOM.items()}
RECURRENT = tuple(recurrent.TINY)
EXPERTS = (*experts.TINY, *recurrent.EXPERTS)
DENSE = (*decoders.TINY, *(family for family in RECURRENT if family not in EXPERTS))  # decoders without experts
DECODERS = (*DENSE, *EXPERTS)
ENCODERS = tuple(family for family in encoders.TINY if "masked" in HEADS[family])
PAIRS = tuple(encoder_decoders.TINY)  # of an encoder and a decoder
FAMILIES = tuple(TINY)
REPRESENTATIVE = (
    "llama",
    "qwen3",
    "qwen3_5_text",
    "gemma3_text",
    "gpt2",
    "bert",
    "distilbert",
    "t5",
    "bart",
)  # of all mechanisms

__all__ = [
    "DECODERS", "DENSE", "ENCODERS", "EXPERTS", "FAMILIES", "HEADS", "LLAMA3_ROPE", "MAIN", "PAIRS", "RANDOM", "RECURRENT",
    "REPRESENTATIVE", "ROPES", "SEVERAL_STREAMS", "TINY",
]  # fmt: skip
