"""A rank's part of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from glassformer.ops.split import Part


def take_part(whole: Tensor, part: Part) -> Tensor:
    """A part of a tensor: a view where it is one range."""
    parts = [whole.narrow(part.axis, indices.start, len(indices)) for indices in part.ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, part.axis)
