"""Shared parts of the families, in plain readable PyTorch."""

from glassformer.layers.attention import Attention
from glassformer.layers.block import Block
from glassformer.layers.linear import Embedding, Linear
from glassformer.layers.mask import Mask
from glassformer.layers.mlp import GatedMLP
from glassformer.layers.norm import RMSNorm
from glassformer.layers.part import Part, christen
from glassformer.layers.passage import Pass, Rotary
from glassformer.layers.positions import RotaryEmbedding

__all__ = [
    "Attention", "Block", "Embedding", "GatedMLP", "Linear", "Mask", "Part", "Pass", "RMSNorm", "Rotary", "RotaryEmbedding",
    "christen",
]  # fmt: skip
