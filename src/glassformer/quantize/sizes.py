"""How many bytes a model's weights take in a kind, by its blueprint alone: before anything is fetched."""

from __future__ import annotations

from glassformer.blueprints import Blueprint
from glassformer.checkpoint.quantization import BITS, check_kind, quantized_size
from glassformer.quantize.tensor_kinds import kind_for, weight_roles

SMALL_KIND = "F32"  # of norms and biases, where matrices are packed


def weight_bytes(blueprint: Blueprint, kind: str) -> int:
    """What `glass models quantize` writes, or in 16 and 32 bits what a checkpoint has."""
    kind, roles = check_kind(kind), weight_roles(blueprint)
    shapes = {weight.name: tuple(weight.shape) for weight in blueprint.weights}
    if BITS[kind] >= 16:
        return sum(quantized_size(kind, shape) for shape in shapes.values())
    return sum(quantized_size(kind_for(roles[name], shape[-1], kind) or SMALL_KIND, shape) for name, shape in shapes.items())
