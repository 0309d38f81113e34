"""Shared parts of the families, in plain readable PyTorch."""

from glassformer.layers.activations import ActivationFunction
from glassformer.layers.attention import Attention, CrossAttention, soft_cap
from glassformer.layers.block import Block
from glassformer.layers.family_module import FamilyModule, attach_module, label_block, label_modules
from glassformer.layers.forward_pass import CrossAttentionSource, DistanceVectors, EncodedSource, ForwardPass, RotaryTables
from glassformer.layers.linear import Conv1D, Embedding, Linear
from glassformer.layers.mask import Mask
from glassformer.layers.norm import LayerNorm, OffsetRMSNorm, RMSNorm
from glassformer.layers.positions import (
    RotaryEmbedding,
    RotaryPositions,
    SinusoidalEmbedding,
    relative_buckets,
    sinusoidal_positions,
)
from glassformer.layers.routed_mlp import RoutedMLP

__all__ = [
    "ActivationFunction", "Attention", "Block", "Conv1D", "CrossAttention", "CrossAttentionSource",
    "DistanceVectors", "Embedding", "EncodedSource", "FamilyModule", "ForwardPass",
    "LayerNorm", "Linear", "Mask", "OffsetRMSNorm", "RMSNorm",
    "RotaryEmbedding", "RotaryPositions", "RotaryTables", "RoutedMLP", "SinusoidalEmbedding", "attach_module",
    "label_block", "label_modules", "relative_buckets", "sinusoidal_positions", "soft_cap",
]  # fmt: skip
