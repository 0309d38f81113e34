"""A decoder of Llama's kind in numpy, slow and plain: what the persistent kernel must be equal to.

Shapes: matrices (rows, columns); keys and values (layers, 2, kv_heads, tokens, head_size).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.checkpoint.gguf_kinds import dequantize
from glassformer.checkpoint.quantization import quantize_rows
from glassformer.engine.gpu.kernels.packed_matmul import pack
from glassformer.engine.gpu.kernels.tensors import DeviceMatrix, float_matrix
from glassformer.engine.gpu.persistent.formats import format_of
from glassformer.engine.gpu.persistent.schedule import LAYER_MATRICES, DecoderShape, Formats

Floats = NDArray[np.float32]
PARTS = {"qkv": ("q", "k", "v"), "output": ("o",), "gate_up": ("gate", "up"), "down": ("down",), "head": ("head",)}


def to_bfloat16(values: Any) -> NDArray[np.uint16]:
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.uint16]) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(values: Any) -> Floats:
    return from_bfloat16(to_bfloat16(values))


def rotation_table(positions: int, head_size: int, base: float = 10_000.0) -> Floats:
    """(positions, 2, head_size / 2): cosines and sines."""
    angles = np.arange(positions)[:, None] * base ** (-np.arange(0, head_size, 2) / head_size)
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


KindOf = Callable[[str, int], str]  # of a matrix by its name, and its layer


def stored(values: Floats, kind: str) -> tuple[DeviceMatrix, Floats]:
    """A matrix of a kind, and the numbers that it has then."""
    rows, columns = values.shape
    if kind == "BF16":
        return float_matrix(torch.from_numpy(values).bfloat16()), rounded(values)
    raw = quantize_rows(values.astype(np.float32), kind)
    return pack(kind, raw, rows, columns), dequantize(np.frombuffer(raw, np.uint8), kind, values.shape, "here")


@dataclass
class RandomModel:
    """Random weights of a shape, as their kinds can hold them."""

    shape: DecoderShape
    seed: int = 0
    kind: KindOf = lambda name, layer: "BF16"

    def __post_init__(self) -> None:
        shape, random = self.shape, np.random.default_rng(self.seed)
        self.stored: dict[tuple[str, int], DeviceMatrix] = {}

        def matrix(name: str, layer: int, rows: int, columns: int, scale: float | None = None) -> Floats:
            values = random.standard_normal((rows, columns)) * (columns**-0.5 if scale is None else scale)
            self.stored[name, layer], values = stored(values.astype(np.float32), self.kind(name, layer))
            return values

        self.embedding = matrix("embedding", 0, shape.vocabulary, shape.hidden, 1.0)
        self.layers = [
            {
                "q": matrix("q", layer, shape.attended, shape.hidden),
                "k": matrix("k", layer, shape.kv_heads * shape.head_size, shape.hidden),
                "v": matrix("v", layer, shape.kv_heads * shape.head_size, shape.hidden),
                "o": matrix("o", layer, shape.hidden, shape.attended),
                "gate": matrix("gate", layer, shape.inner, shape.hidden),
                "up": matrix("up", layer, shape.inner, shape.hidden),
                "down": matrix("down", layer, shape.hidden, shape.inner),
            }
            for layer in range(shape.layers)
        ]
        self.head = matrix("head", shape.layers, shape.vocabulary, shape.hidden)
        self.norms = random.uniform(0.5, 1.5, (2 * shape.layers + 1, shape.hidden)).astype(np.float32)
        self.head_norms = random.uniform(0.5, 2, (shape.layers, 2, shape.head_size)).astype(np.float32)
        self.qkv_bias = (random.standard_normal((shape.layers, shape.qkv_rows)) / 4).astype(np.float32)

    def matrices(self, name: str, layer: int) -> list[DeviceMatrix]:
        """The parts of one of the schedule's matrices."""
        return [self.stored[part, layer] for part in PARTS[name]]

    def formats(self) -> Formats:
        """The format of each of the schedule's matrices."""
        layers = range(self.shape.layers)
        kinds = {name: {m.kind for layer in layers for m in self.matrices(name, layer)} for name in LAYER_MATRICES}
        kinds["head"] = {self.stored["head", self.shape.layers].kind}
        formats = {name: format_of(of_name) for name, of_name in kinds.items()}
        return {name: form for name, form in formats.items() if form is not None}

    def forward(self, token: int, position: int, cache: Floats, rotation: Floats) -> tuple[Floats, Floats]:
        """One token's scores and residuals (layers, 2, hidden); its keys and values are written to the cache."""
        shape, residuals = self.shape, []
        x = self.embedding[token]
        for number, layer in enumerate(self.layers):
            h = self._norm(x, self.norms[2 * number])
            qkv = np.concatenate([layer[part] @ h for part in "qkv"])
            if shape.qkv_bias:
                qkv = qkv + self.qkv_bias[number]
            heads = qkv.reshape(-1, shape.head_size)
            q, k, v = np.split(heads, [shape.heads, shape.heads + shape.kv_heads])
            if shape.head_norms:
                q, k = self._norm(q, self.head_norms[number, 0]), self._norm(k, self.head_norms[number, 1])
            q, k = (self._rotate(part, rotation[position]) for part in (q, k))
            cache[number, 0, :, position], cache[number, 1, :, position] = rounded(k), rounded(v)
            x = x + layer["o"] @ self._attend(q, cache[number, :, :, : position + 1])
            residuals.append(x)
            h = self._norm(x, self.norms[2 * number + 1])
            gate = layer["gate"] @ h
            x = x + layer["down"] @ (gate / (1 + np.exp(-gate)) * (layer["up"] @ h))
            residuals.append(x)
        return self.head @ self._norm(x, self.norms[-1]), np.stack(residuals).reshape(shape.layers, 2, -1)

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.shape.epsilon)) * weight

    def _rotate(self, heads: Floats, angles: Floats) -> Floats:
        first, second = np.split(heads, 2, -1)
        cosine, sine = angles
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1)

    def _attend(self, q: Floats, cache: Floats) -> Floats:
        keys, values = (part.repeat(self.shape.query_heads_per_kv_head, 0) for part in cache)  # (heads, tokens, head_size)
        scores = np.einsum("hd,htd->ht", q, keys) / np.sqrt(np.float32(self.shape.head_size))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("ht,htd->hd", weights / weights.sum(-1, keepdims=True), values).reshape(-1)
