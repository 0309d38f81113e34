"""Several short rows in one: side by side in a window, where none sees another and each begins at position 0.

A window is as wide as the longest row of its batch, so that little of it is padding. What is computed for a row is the same
as if it stood alone.

Shapes: ids, targets, positions and sequences (windows, width).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.families.shared.base import IGNORED, WatchLike
from glassformer.layers import Mask


@dataclass(frozen=True)
class TrainingRow:
    """A text's ids, and which of them are to be predicted by those before."""

    ids: Sequence[int]
    predicted: Sequence[bool]


def windows_of(lengths: Sequence[int], pack: bool = True) -> list[list[int]]:
    """Which rows share a window: the longest first, each into the first window that has room (first-fit decreasing)."""
    if not pack:
        return [[number] for number in range(len(lengths))]
    width = max(lengths, default=0)
    windows: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        place = next((place for place, left in enumerate(room) if left >= lengths[number]), None)
        if place is None:
            windows.append([])
            room.append(width)
            place = len(windows) - 1
        windows[place].append(number)
        room[place] -= lengths[number]
    return windows


@dataclass(frozen=True)
class PackedRows:
    """Rows as a model reads them."""

    inputs: dict[str, Tensor]  # `sequence_ids` says which row each token is of, where rows share windows
    targets: Tensor  # what is to be predicted at each place
    row_numbers: Tensor  # of each place; 0 where there is none


def pack_rows(rows: Sequence[TrainingRow], pack: bool = True) -> PackedRows:
    windows = windows_of([len(row.ids) for row in rows], pack)
    width = max(len(row.ids) for row in rows)
    ids, positions, numbers = (np.zeros((len(windows), width), np.int64) for _ in range(3))
    targets = np.full((len(windows), width), IGNORED, np.int64)
    sequences = np.zeros((len(windows), width), np.int64)
    for window_number, window in enumerate(windows):
        start = 0
        for sequence, row_number in enumerate(window, 1):
            row = rows[row_number]
            place = slice(start, start + len(row.ids))
            ids[window_number, place] = row.ids
            positions[window_number, place] = range(len(row.ids))
            sequences[window_number, place], numbers[window_number, place] = sequence, row_number
            targets[window_number, start : place.stop - 1] = np.where(row.predicted, row.ids, IGNORED)[1:]
            start = place.stop
    shared = any(len(window) > 1 for window in windows)
    arrays = {"input_ids": ids, "position_ids": positions, **({"sequence_ids": sequences} if shared else {})}
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return PackedRows(inputs, torch.from_numpy(targets), torch.from_numpy(numbers))


def run_packed(base: Any, inputs: Mapping[str, Tensor], watch: WatchLike = None) -> Any:
    """A base model's output for packed rows; padding stands at a window's end, where nothing sees it."""
    ids = inputs["input_ids"]
    columns = torch.arange(ids.shape[1], device=ids.device)[None]
    mask = Mask(columns, ids.shape[1], sequences=inputs.get("sequence_ids"))
    tap = base.make_tap(base.watch_for(False, False, watch))
    return base(ids, p=base.new_pass(inputs["position_ids"], mask, tap=tap), watch=watch)
