"""Shared parts of the families, in plain readable PyTorch."""

from glassformer.layers.attention import Attention, CrossAttention, RotaryAttention
from glassformer.layers.block import Block
from glassformer.layers.linear import Conv1D, Embedding, Linear
from glassformer.layers.mask import Mask
from glassformer.layers.mlp import MLP, Activation, GatedMLP
from glassformer.layers.norm import LayerNorm, OffsetRMSNorm, RMSNorm
from glassformer.layers.part import Part, christen, mount
from glassformer.layers.passage import Encoded, Pass, Rotary, Source
from glassformer.layers.positions import RotaryEmbedding, buckets, waves

__all__ = [
    "MLP", "Activation", "Attention", "Block", "Conv1D", "CrossAttention", "Embedding", "Encoded", "GatedMLP", "LayerNorm",
    "Linear", "Mask", "OffsetRMSNorm", "Part", "Pass", "RMSNorm", "Rotary", "RotaryAttention", "RotaryEmbedding", "Source",
    "buckets", "christen", "mount", "waves",
]  # fmt: skip
