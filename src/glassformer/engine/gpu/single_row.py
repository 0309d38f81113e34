"""Whether the persistent kernel fits a model, and the weights that it is made of.

It decodes a single row. It reads its weights as one stream, and so has a second copy of them. Where the blueprint, the
weights, the card or its memory do not fit, one sentence says why.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from glassformer.blueprints import Blueprint
from glassformer.engine.gpu.device import free_memory
from glassformer.engine.gpu.persistent.decoder import OLDEST_CAPABILITY, Card, DecoderWeights
from glassformer.engine.gpu.persistent.layout import DecoderLayout, DoesNotFit, read_layout, rotation_table
from glassformer.engine.gpu.persistent.schedule import LAYER_MATRICES, misfit
from glassformer.engine.gpu.weights import DeviceWeights
from glassformer.errors import ExecutorError


def fitting_layout(blueprint: Blueprint, weights: DeviceWeights, cache: str, card: Card) -> DecoderLayout:
    """The layout of a model that the persistent kernel can decode; else an error that says why it cannot."""
    if card.capability < OLDEST_CAPABILITY:
        raise ExecutorError(f"the persistent kernel needs compute capability 9.0, unlike {card.name}.")
    try:
        layout = read_layout(blueprint)
    except DoesNotFit as error:
        raise ExecutorError(str(error)) from error
    if reason := misfit(layout.shape, card.multiprocessors, card.shared_bytes):
        raise ExecutorError(f"the persistent kernel does not fit: {reason}")
    kinds = {weights.stored(name).kind for name in _matrix_names(layout)}
    if kinds != {"BF16"} or cache != "bf16":
        raise ExecutorError("the persistent kernel takes weights, keys and values in bfloat16 only.")
    return layout


def _matrix_names(layout: DecoderLayout) -> list[str]:
    parts = [layout.parts(matrix, layer) for layer in range(layout.shape.layers) for matrix in LAYER_MATRICES]
    return [layout.embedding, layout.head, *(name for names in parts for name in names)]


def decoder_weights(layout: DecoderLayout, weights: DeviceWeights, context: int) -> DecoderWeights:
    """What the kernel makes its own copy of; an error where there is no memory for that."""
    matrices = {name: weights.rows(name) for name in _matrix_names(layout)}
    needed = sum(matrix.nbytes for matrix in matrices.values()) * 5 // 4
    if weights.device.type == "cuda" and needed > (free := free_memory(weights.device)):
        raise ExecutorError(
            f"the persistent kernel needs {needed / 1e9:.1f} GB for a copy of the weights, and {free / 1e9:.1f} GB of the "
            "GPU's memory are free."
        )

    def on_device(values: object) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(weights.device)

    head_norms = [[weights.floats(name) for name in layer.head_norms] for layer in layout.layers]
    biases = [weights.floats(*layer.qkv_biases) for layer in layout.layers if layer.qkv_biases]
    return DecoderWeights(
        lambda matrix, layer: [matrices[name] for name in layout.parts(matrix, layer)],
        matrices[layout.embedding],
        norms=on_device([weights.floats(name) for name in layout.norms]),
        rotation=on_device(rotation_table(layout.rope, context, layout.shape.head_size)),
        head_norms=on_device(head_norms) if layout.shape.head_norms else None,
        qkv_bias=on_device(biases) if layout.shape.qkv_bias else None,
    )
