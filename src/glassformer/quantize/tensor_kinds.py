"""Which tensor of a model gets which kind.

The matrices of products take nearly all the room and bear rounding best: they get the requested kind. The table of
tokens and the head, where rounding hurts most, get no fewer than eight bits. Norms, biases, positions and the routers of
experts are small and stay as they are. Where a row does not divide into a kind's blocks, the nearest kind that fits takes
its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from glassformer.blueprints import Blueprint, Op, Weight
from glassformer.checkpoint.legacy_names import resolve_names
from glassformer.checkpoint.quantization import BITS, check_kind, fits, quantized_size
from glassformer.checkpoint.stored_tensors import main_kind
from glassformer.ground.errors import InputError
from glassformer.model_files import ModelFiles

Role: TypeAlias = Literal["product", "columns", "table", "plain"]  # columns: a product whose columns are to be packed

FALLBACKS: Mapping[str, str] = {"Q6_K": "Q8_0", "Q5_K": "Q8_0", "Q4_K": "Q4_1"}  # where a row is no multiple of 256
TABLE_KIND = "Q8_0"

SMALL_KIND = "F32"  # of norms and biases, where matrices are packed


def weight_roles(blueprint: Blueprint) -> dict[str, Role]:
    """What each weight of a blueprint is for."""
    roles: dict[str, Role] = {}
    for op in blueprint.ops:
        for weight in op.weights:
            roles.setdefault(weight.name, _role(op, weight))  # a table that is a head too is named as a table first
    return roles


def _role(op: Op, weight: Weight) -> Role:
    if len(weight.shape) < 2 or weight.name.endswith("bias"):  # BART's has two dimensions
        return "plain"
    if op.site is not None and op.site.endswith(".mlp.router"):  # small, and what is rounded there goes to another expert
        return "plain"
    return "columns" if op.options.get("columns") else op.weight_role


def stored_roles(opened: ModelFiles) -> dict[int, Role]:
    """What each stored tensor that packing matters for is there for, by its identity; names have too much history."""
    found: dict[int, Role] = {}
    for part in (opened.draft_head, opened):  # what a head shares with the model has the role that it has there
        if part is not None:
            roles = weight_roles(part.blueprint())
            tensors = resolve_names(part.tensors, tuple(roles))
            found |= {id(tensor): roles[name] for name, tensor in tensors.items() if roles[name] != "plain"}
    return found


def kind_for(role: Role, columns: int, kind: str) -> str | None:
    """The kind for a tensor whose rows, as they are packed, have `columns` numbers; None: it is not packed."""
    if role == "plain":
        return None
    preferred = TABLE_KIND if role == "table" and BITS[kind] < BITS[TABLE_KIND] else kind
    return next(
        candidate for candidate in (preferred, FALLBACKS.get(preferred, preferred), "F16") if fits(candidate, columns)
    )


def check_quantizable(opened: ModelFiles, kind: str, *, packed_too: bool = False, advice: str = "") -> str:
    """The kind as the format spells it; refused if it does not exist, or if weights are packed already.

    `packed_too`: those are expanded and packed once more; `advice`: how to ask for that. An adapter on a packed base is
    another model than the base, of which there are no other weights: it is packed again without being asked.
    """
    kind = check_kind(kind)
    opened.check_sizes()
    packed = [tensor for tensor in opened.tensors.values() if tensor.packed]
    if packed and not packed_too and not opened.adapters:
        raise InputError(
            f"{opened.name}: its weights are packed already, as {main_kind(packed)}; packed once more they would lose more "
            f"than {kind} costs. Take the model in BF16, F16 or F32.{advice}"
        )
    return kind


def model_label(opened: ModelFiles) -> str:
    """A short name for files that are made of a model."""
    return Path(opened.name).name.removesuffix(".gguf") or opened.path.resolve().name


def weight_bytes(blueprint: Blueprint, kind: str) -> int:
    """What `glass models quantize` writes, or in 16 and 32 bits what a checkpoint has."""
    kind, roles = check_kind(kind), weight_roles(blueprint)
    shapes = {weight.name: tuple(weight.shape) for weight in blueprint.weights}
    if BITS[kind] >= 16:
        return sum(quantized_size(kind, shape) for shape in shapes.values())
    return sum(quantized_size(kind_for(roles[name], shape[-1], kind) or SMALL_KIND, shape) for name, shape in shapes.items())
