"""Who may look at whom.

Keys stand in columns; each query stands on one of them. A query sees the columns up to its own (causal), not further
back than a layer's window, and no padding; but itself where it would see nothing else, so that there is always something
to average and no NaN is born.

Shapes: columns (batch or 1, length); present (batch, keys); the mask itself (batch or 1, 1, length, keys); a bias
(batch or 1, heads, length, keys).
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor


class Mask:
    """The mask of one pass, made for a layer's window when first asked, then shared by all such layers."""

    __slots__ = ("_added", "_made", "_tree", "bias", "causal", "columns", "everything", "keys", "own", "present", "square")

    def __init__(
        self,
        columns: Tensor,
        keys: int,
        *,
        causal: bool = True,
        present: Tensor | None = None,
        level: bool = True,
        own: bool = True,
    ) -> None:
        """`level`: all rows' queries stand on the same, last columns, so that common cases need no tensor at all.
        `own`: queries and keys are the same tokens, so that each may see itself; in cross-attention they are not."""
        self.columns = columns
        self.keys = keys
        self.causal = causal
        self.present = present
        self.own = own
        self.bias: Tensor | None = None
        length = columns.shape[1]
        whole = level and present is None
        self.everything = whole and (length == 1 or not causal)  # each query sees every key
        self.square = whole and causal and 1 < length == keys  # the plain triangle
        self._made: dict[int | None, Tensor] = {}
        self._added: dict[int | None, Tensor] = {}
        self._tree: tuple[Tensor, Tensor, Tensor] | None = None

    def shortcut(self, window: int | None) -> tuple[bool, bool]:
        """(nothing is hidden, the plain triangle): what fast attention can do without a mask."""
        if self.bias is not None or (window is not None and window < self.keys):
            return False, False
        return self.everything, self.square

    def visible(self, window: int | None = None) -> Tensor:
        """True where a query sees a key."""
        if window is not None and window >= self.keys:
            window = None
        if window not in self._made:
            self._made[window] = self._make(window)
        return self._made[window]

    def biased(self, bias: Tensor) -> Mask:
        """The same mask with something added to the scores, as relative positions do."""
        other = copy(self)
        other.bias, other._added = bias, {}
        return other

    def added(self, window: int | None = None) -> Tensor:
        """For fast attention: what is visible, or where there is a bias, that bias with the hidden at minus infinity."""
        if self.bias is None:
            return self.visible(window)
        if window not in self._added:
            self._added[window] = self.bias.masked_fill(~self.visible(window), -torch.inf)
        return self._added[window]

    def distances(self) -> Tensor:
        """How far each key stands from each query, (batch or 1, 1, length, keys); what came before is negative."""
        if self._tree is not None:
            _, places, positions = self._tree
            return places[:, None, None, :] - positions[:, None, :, None]
        return torch.arange(self.keys, device=self.columns.device) - self.columns[:, None, :, None]

    def given(self, seen: Tensor, places: Tensor, positions: Tensor) -> None:
        """Replace the causal rule, as a tree of tokens needs it.

        `seen` is (batch, 1, length, keys); `places` (batch, keys) and `positions` (batch, length) say how far along
        its branch each key and each query stands, which is what a window counts.
        """
        self._tree = seen, places, positions
        self._made = {}

    def _make(self, window: int | None) -> Tensor:
        near = self.distances()
        if self._tree is not None:
            seen = self._tree[0]
        else:
            seen = near <= 0 if self.causal else torch.ones_like(near, dtype=torch.bool)
        if window is not None:
            seen = seen & (near > -window)
        if self.present is not None:
            seen = seen & self.present[:, None, None, :]
            if self.own and self.causal:
                seen = seen | (near == 0)
            elif self.own:  # without an order, padding sees what is there; only where nothing is, itself
                seen = seen | ((near == 0) & ~self.present.any(-1)[:, None, None, None])
        return seen
