"""Shared parts of the families, in plain readable PyTorch."""

from glassformer.layers.attention import Attention, CrossAttention, RotaryAttention
from glassformer.layers.block import Block
from glassformer.layers.family_module import FamilyModule, attach_module, label_modules
from glassformer.layers.forward_pass import CrossAttentionSource, EncodedSource, ForwardPass, RotaryTables
from glassformer.layers.linear import Conv1D, Embedding, Linear
from glassformer.layers.mask import Mask
from glassformer.layers.mlp import MLP, ActivationFunction, GatedMLP
from glassformer.layers.norm import LayerNorm, OffsetRMSNorm, RMSNorm
from glassformer.layers.positions import RotaryEmbedding, relative_buckets, sinusoidal_positions

__all__ = [
    "MLP", "ActivationFunction", "Attention", "Block", "Conv1D", "CrossAttention", "CrossAttentionSource", "Embedding",
    "EncodedSource", "FamilyModule", "ForwardPass", "GatedMLP", "LayerNorm", "Linear", "Mask", "OffsetRMSNorm", "RMSNorm",
    "RotaryAttention", "RotaryEmbedding", "RotaryTables", "attach_module", "label_modules", "relative_buckets",
    "sinusoidal_positions",
]  # fmt: skip
