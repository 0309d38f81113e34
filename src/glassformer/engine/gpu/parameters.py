"""A live model's parameters as the engine's weights, and whether they have changed since.

A parameter that a step reads alone is used where it lies; those that are joined with others are copied once. Weights can
change in ways that torch does not count (`parameter.data.mul_(2)`), so nothing but their bytes can say that they have not:
a fingerprint of all of them takes about as long as the device needs to read them once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from glassformer.checkpoint.stored_tensors import Floats
from glassformer.engine.gpu.kernels.fingerprint import ALIGNMENT, SPAN, fingerprint
from glassformer.engine.gpu.kernels.tensors import FLOAT_KINDS


@dataclass(frozen=True)
class ParameterTensor:
    """A parameter or buffer of a module, with what the engine asks of a `StoredTensor`."""

    name: str
    values: Tensor  # detached, in the parameter's own memory
    layout: None = None

    @property
    def kind(self) -> str:
        return FLOAT_KINDS[self.values.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.values.nbytes

    @property
    def label(self) -> str:
        return f"parameter {self.name!r}"

    def in_memory(self) -> Self:
        """It lies in the memory of a device already."""
        return self

    def to_float32(self) -> Floats:
        values: Floats = self.values.float().cpu().numpy()
        return values


class ParameterWatch:
    """Notices when tensors of a device change: by their addresses, or by a fingerprint of their bytes."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._places = _places(tensors)
        device = next(iter(tensors.values())).device
        spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # aligned or not: addresses, 16-bit words
        for address, size in dict.fromkeys(self._places.values()):
            body = size // ALIGNMENT * ALIGNMENT if address % ALIGNMENT == 0 else 0
            for aligned, begin, end in ((True, 0, body), (False, body, size)):
                parts = ((at, min(SPAN, end - at)) for at in range(begin, end, SPAN))
                spans[aligned] += [(address + at, length // 2) for at, length in parts]
        self._spans = {
            aligned: torch.tensor(rows, dtype=torch.int64, device=device).view(-1, 2).T.contiguous()
            for aligned, rows in spans.items()
        }
        self._fingerprint = self._read()

    def unchanged(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are the same tensors at the same addresses, with the same bytes."""
        return _places(tensors) == self._places and torch.equal(self._read(), self._fingerprint)

    def _read(self) -> Tensor:
        return torch.cat([fingerprint(spans[0], spans[1], aligned) for aligned, spans in self._spans.items()])


def _places(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    return {name: (tensor.data_ptr(), tensor.nbytes) for name, tensor in tensors.items()}
