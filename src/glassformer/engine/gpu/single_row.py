"""Whether the persistent kernel fits a model, and the weights that it is made of.

It decodes a single row. It reads its weights as one stream, and so has a second copy of them. Where the blueprint, the
weights, the card or its memory do not fit, one sentence says why.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from glassformer.blueprints import Blueprint
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix
from glassformer.engine.gpu.persistent.decoder import Card, DecoderWeights, plan_schedule
from glassformer.engine.gpu.persistent.layout import DecoderLayout, DoesNotFit, read_layout, rotation_table
from glassformer.engine.gpu.persistent.schedule import Schedule
from glassformer.engine.gpu.weights import DeviceWeights
from glassformer.ground.errors import ExecutorError


def fitting_layout(blueprint: Blueprint, weights: DeviceWeights, cache: str, card: Card) -> tuple[DecoderLayout, Schedule]:
    """The layout of a model that the persistent kernel can decode, and how; else an error that says why it cannot."""
    try:
        layout = read_layout(blueprint)
    except DoesNotFit as error:
        raise ExecutorError(str(error)) from error
    kind = weights.part(layout.embedding).kind
    return layout, plan_schedule(layout.shape, lambda *place: _parts(layout, weights, *place), kind, cache, card)


def _parts(layout: DecoderLayout, weights: DeviceWeights, matrix: str, layer: int) -> list[DeviceMatrix]:
    return [weights.part(name) for name in layout.parts(matrix, layer)]


def decoder_weights(layout: DecoderLayout, weights: DeviceWeights, context: int) -> DecoderWeights:
    """What the kernel makes its own copy of."""

    def on_device(values: object) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(weights.device)

    head_norms = [[weights.floats(name) for name in layer.head_norms] for layer in layout.layers]
    biases = [weights.floats(*layer.qkv_biases) for layer in layout.layers if layer.qkv_biases]
    return DecoderWeights(
        lambda *place: _parts(layout, weights, *place),
        weights.part(layout.embedding),
        norms=on_device([weights.floats(name) for name in layout.norms]),
        rotation=on_device(rotation_table(layout.rope, context, layout.shape.head_size)),
        head_norms=on_device(head_norms) if layout.shape.head_norms else None,
        qkv_bias=on_device(biases) if layout.shape.qkv_bias else None,
    )
