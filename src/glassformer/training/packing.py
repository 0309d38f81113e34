"""Several short rows in one: side by side in a window, where none sees another and each begins at position 0.

A window is as wide as the longest row of its batch, so that little of it is padding. A row gets the values that it gets
alone.

Shapes: ids, targets, positions and sequences (windows, width).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.torch.arguments import WatchLike
from glassformer.torch.base import IGNORED
from glassformer.torch.mask import Mask


@dataclass(frozen=True)
class TrainingRow:
    """A text's ids, and which of them are to be predicted by those before."""

    ids: Sequence[int]
    predicted: Sequence[bool]


def windows_of(lengths: Sequence[int], pack: bool = True) -> list[list[int]]:
    """Which rows share a window: the longest first, each into the first window that has room (first-fit decreasing)."""
    if not pack:
        return [[row] for row in range(len(lengths))]
    width = max(lengths, default=0)
    windows: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        place = next((place for place, left in enumerate(room) if left >= lengths[row]), None)
        if place is None:
            windows.append([])
            room.append(width)
            place = len(windows) - 1
        windows[place].append(row)
        room[place] -= lengths[row]
    return windows


@dataclass(frozen=True)
class PackedRows:
    """Rows as a model reads them."""

    inputs: dict[str, Tensor]  # `sequence_ids` says which row each token is of, where rows share windows
    targets: Tensor  # what is to be predicted at each place
    row_indices: Tensor  # of each place; 0 where there is none


def pack_rows(rows: Sequence[TrainingRow], pack: bool = True) -> PackedRows:
    windows = windows_of([len(row.ids) for row in rows], pack)
    width = max(len(row.ids) for row in rows)
    ids, positions, sequences, indices = (np.zeros((len(windows), width), np.int64) for _ in range(4))
    targets = np.full((len(windows), width), IGNORED, np.int64)
    for window, members in enumerate(windows):
        start = 0
        for sequence, index in enumerate(members, 1):
            row = rows[index]
            place = slice(start, start + len(row.ids))
            ids[window, place] = row.ids
            positions[window, place] = range(len(row.ids))
            sequences[window, place], indices[window, place] = sequence, index
            targets[window, start : place.stop - 1] = np.where(row.predicted, row.ids, IGNORED)[1:]
            start = place.stop
    shared = any(len(members) > 1 for members in windows)
    arrays = {"input_ids": ids, "position_ids": positions, **({"sequence_ids": sequences} if shared else {})}
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return PackedRows(inputs, torch.from_numpy(targets), torch.from_numpy(indices))


def run_packed(base: Any, inputs: Mapping[str, Tensor], watch: WatchLike = None) -> Any:
    """A base model's output for packed rows; padding stands at a window's end, where nothing sees it."""
    ids = inputs["input_ids"]
    columns = torch.arange(ids.shape[1], device=ids.device)[None]
    mask = Mask(columns, ids.shape[1], sequences=inputs.get("sequence_ids"))
    tap = base.make_tap(base.watch_for(False, False, watch))
    return base(ids, p=base.new_pass(inputs["position_ids"], mask, tap=tap), watch=watch)
