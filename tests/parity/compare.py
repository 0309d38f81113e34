"""Ours beside the reference: loading both, and what "equal" means."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from glassformer.compat import auto
from tests.parity import reference


class Pair(NamedTuple):
    theirs: Any
    ours: Any
    folder: Path
    family: str
    head: str


def load(folder: Path, head: str, **options: Any) -> Any:
    """Ours, from a folder."""
    ending = reference.AUTO[head]
    return getattr(auto, f"AutoModelFor{ending}" if ending else "AutoModel").from_pretrained(folder, **options)


def pair(folder: Path, family: str, head: str, **changes: Any) -> Pair:
    """A model that the reference builds and saves, and what ours makes of it."""
    theirs = reference.write(folder, family, head, **changes)
    return Pair(theirs, load(folder, head), folder, family, head)


def close(ours: Tensor, theirs: Tensor, share: float = 1e-4) -> None:
    """Equal, relative to the range of the reference's own values; and to a few units in the last place of the largest."""
    ours, theirs = ours.detach(), theirs.detach()
    spread = float(theirs.max() - theirs.min()) or 1.0
    rounding = 8 * torch.finfo(torch.float32).eps * float(theirs.abs().max())
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= share * spread + rounding


@torch.no_grad()
def share_of_rounding(model: Any, **inputs: Tensor) -> float:
    """How close two orders of the same float32 sums can be expected to come, as a share of the range of the model's output.

    Measured: how far this order is from float64. Another may be as far on the other side, and its worst value worse; a model
    whose softmax is peaked, as T5's is without a scale, makes a hundred times more of a rounding than others.
    """
    exact = copy.deepcopy(model).double()(**inputs)[0]
    error = float((model(**inputs)[0] - exact).abs().max())
    return 8 * error / (float(exact.max() - exact.min()) or 1.0)


def ids_for(model: Any, *shape: int, seed: int = 1) -> Tensor:
    """Ids without any special one."""
    return torch.randint(3, model.config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def ragged(model: Any, lengths: Sequence[int], side: str = "right") -> tuple[list[Tensor], Tensor, Tensor]:
    """Rows of different lengths; the same as a batch, padded on a side; and its mask."""
    rows = [ids_for(model, 1, length, seed=length)[0] for length in lengths]
    pad, longest = model.config.pad_token_id or 0, max(lengths)
    padded = torch.full((len(rows), longest), pad)
    mask = torch.zeros_like(padded)
    for number, row in enumerate(rows):
        at = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        padded[number, at], mask[number, at] = row, 1
    return rows, padded, mask


def same_fields(result: Any, expected: Any, share: float = 1e-4, **masks: Tensor) -> None:
    """Every field that the reference gives is there under its name, and equal; and there is no other.

    `masks`: by a field's name, which of its tokens (batch, length) are compared; the rest is padding.
    """
    there, given = ({n for n, v in one.items() if n != "past_key_values" and v != ()} for one in (result, expected))
    assert there == given
    for name in sorted(given):
        one, other = result[name], expected[name]
        several = isinstance(other, tuple)
        assert isinstance(one, tuple) == several, name
        assert not several or len(one) == len(other) > 0, name
        for mine, yours in zip(one, other, strict=True) if several else [(one, other)]:
            if name in masks:
                real = masks[name].bool()
                mine, yours = (value.transpose(1, 2) if value.ndim == 4 else value for value in (mine, yours))
                mine, yours = mine[real], yours[real]
            close(mine, yours, share)
