"""A text under the glass: every view of what a model made of it, each by one call and in a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.observe.attention import Attention, Heads, Kind, attention, heads
from glassformer.observe.attribution import Attribution, attribution
from glassformer.observe.lens import Lens, lens
from glassformer.observe.passes import Passes, Tell
from glassformer.observe.trace import TOP, Trace, read


class Reading(Passes):
    """A text that a model has read, and perhaps written."""

    def trace(self, best: int = TOP, *, tell: Tell | None = None) -> Trace:
        """At each place what was expected, what came, and how surprising it was; what would come next."""
        return read(self, best, tell)

    def attention(
        self, layer: int | None = None, head: int | None = None, *, kind: Kind = "self", rollout: bool = False,
        tell: Tell | None = None,
    ) -> Attention:  # fmt: skip
        """Who looked at whom: one head, a layer's mean (no head), all layers' mean (no layer), or their rollout.

        `kind`: 'self', or of an encoder-decoder 'cross' or 'encoder'. `.of(token)` is one row of it.
        """
        return attention(self, layer, head, kind=kind, rollout=rollout, tell=tell)

    def heads(self, *, kind: Kind = "self", tell: Tell | None = None) -> Heads:
        """All heads of all layers, each in a few numbers: where it mostly looks, and how widely."""
        return heads(self, kind=kind, tell=tell)

    def lens(self, positions: Sequence[int | str] | None = None, *, tell: Tell | None = None) -> Lens:
        """What each layer would have said at some positions: the last few, unless others are named."""
        return lens(self, positions, tell=tell)

    def attribution(
        self, position: int | str = -1, token: int | str | None = None, against: int | str | None = None
    ) -> Attribution:
        """What each block and head added to a token's score: the best one's after this position, or another's.

        `against`: a token that it is held against: what they added to its lead over that one.
        """
        return attribution(self, position, token, against)
