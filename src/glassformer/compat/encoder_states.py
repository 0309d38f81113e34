"""A call of an encoder that the CPU engine answers: token ids in, final states out, and nothing else asked for.

Heads and poolers read the states in PyTorch, as ever. Calls with other arguments, and those that end in an error, are
PyTorch's.

Shapes: ids, mask, types (batch, length); states (batch, length, hidden), zero at padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.compat.generate_inputs import PaddedRows
from glassformer.compat.generation_executor import reader_for
from glassformer.families.shared.encoder import first_tokens
from glassformer.families.shared.outputs import BaseModelOutputWithPooling

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def encoder_output(base: Any, args: Sequence[Any], named: Mapping[str, Any]) -> BaseModelOutputWithPooling | None:
    """What the call gives; None where PyTorch answers it."""
    if torch.is_grad_enabled() or len(args) > len(INPUTS):
        return None
    inputs: dict[str, Any] = dict.fromkeys(INPUTS) | dict(zip(INPUTS, args, strict=False)) | dict(named)
    ids, mask, types = (inputs.pop(name) for name in INPUTS)
    if any(value is not None and value is not False for value in inputs.values()) or not _is_plain(base, ids, mask, types):
        return None
    if (reader := reader_for(base)) is None:
        return None
    layout = PaddedRows.of(len(ids), ids.shape[1], mask)
    own_types = None if types is None else [row.tolist() for row in layout.own(types)]
    rows = reader.read([row.tolist() for row in layout.own(ids)], own_types)
    states = torch.zeros(*ids.shape, base.config.hidden_size, dtype=base.dtype)
    for state, row, columns in zip(states, rows, layout.columns, strict=True):
        state[columns] = torch.from_numpy(row).to(base.dtype)
    real = None if mask is None else mask.bool()
    return BaseModelOutputWithPooling(states, None if base.pooler is None else base.pooler(first_tokens(states, real)))


def _is_plain(base: Any, ids: Any, mask: Any, types: Any) -> bool:
    """Whether these are ids of the vocabulary, padded on one side, and types that the model knows."""
    given = [tensor for tensor in (ids, mask, types) if tensor is not None]
    if not all(type(tensor) is Tensor and tensor.device.type == "cpu" for tensor in given) or ids is None:
        return False
    integers = all(tensor.dtype in (torch.int64, torch.int32) for tensor in (ids, *given[2:]))
    if ids.ndim != 2 or not ids.numel() or not integers or any(tensor.shape != ids.shape for tensor in given):
        return False
    type_count = getattr(base.config, "type_vocab_size", 0) or 1 << 30
    bounds = [(ids, base.vocabulary_size), *([(types, type_count)] if types is not None else [])]
    if ids.shape[1] > base.config.context or any(tensor.min() < 0 or tensor.max() >= end for tensor, end in bounds):
        return False
    if mask is None:
        return True
    real = mask.bool()
    return bool(real.any(1).all() and ((real[:, 1:] != real[:, :-1]).sum(1) <= 1).all())
