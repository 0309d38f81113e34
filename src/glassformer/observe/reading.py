"""A text that a model has read: every view of it, each by one call and in a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from glassformer.arguments import checked_class
from glassformer.features.dictionary import FeatureDictionary
from glassformer.observe.activations import Activations
from glassformer.observe.attention import attention, attention_maps, heads
from glassformer.observe.attribution import attribution
from glassformer.observe.experts import experts
from glassformer.observe.features import TOP as TOP_FEATURES
from glassformer.observe.features import features
from glassformer.observe.inside import inside
from glassformer.observe.lens import lens
from glassformer.observe.trace import TOP, trace_text
from glassformer.progress import Progress
from glassformer.typecheck import OWN_CHECK
from glassformer.views.attention import AttentionKind, AttentionMap, Heads
from glassformer.views.attention_maps import AttentionMaps
from glassformer.views.attribution import Attribution
from glassformer.views.experts import Experts
from glassformer.views.features import Features
from glassformer.views.inside import Inside
from glassformer.views.lens import Lens
from glassformer.views.trace import Trace


@checked_class
class Reading(Activations):
    """A text that a model has read, and perhaps written."""

    def trace(self, best: int = TOP, *, progress: Progress | None = None) -> Trace:
        """At each place what was expected, which token stands there, and its surprisal; and what would come next."""
        return trace_text(self, best, progress)

    def attention(
        self, layer: int | None = None, head: int | None = None, *, kind: AttentionKind = "self", rollout: bool = False,
        progress: Progress | None = None,
    ) -> AttentionMap:  # fmt: skip
        """Who attended to whom: one head, a layer's mean (no head), all layers' mean (no layer), or their rollout.

        `kind`: 'self', or of an encoder-decoder 'cross' or 'encoder'. `.of(token)` is one row of it.
        """
        return attention(self, layer, head, kind=kind, rollout=rollout, progress=progress)

    def heads(self, *, kind: AttentionKind = "self", progress: Progress | None = None) -> Heads:
        """All heads of all layers, each in a few numbers: where it mostly looks, and how widely."""
        return heads(self, kind=kind, progress=progress)

    def attention_maps(self, first: int = 0, *, kind: AttentionKind = "self") -> AttentionMaps:
        """Every head's map with a byte for each weight, of as many layers as fit, from layer `first` on."""
        return attention_maps(self, first, kind=kind)

    def lens(self, positions: Sequence[int | str] | None = None, *, progress: Progress | None = None) -> Lens:
        """What each layer would predict at some positions: the last few, unless others are named."""
        return lens(self, positions, progress=progress)

    def attribution(
        self, position: int | str = -1, token: int | str | None = None, against: int | str | None = None
    ) -> Attribution:
        """What each block and head added to a token's score: the best one's after this position, or another's.

        `against`: another token; then it is what they added to the lead over that one.
        """
        return attribution(self, position, token, against)

    def experts(self, *, progress: Progress | None = None) -> Experts:
        """To which experts each token goes, layer by layer, and how evenly the tokens are spread over them."""
        return experts(self, progress=progress)

    def features(self, dictionary: Annotated[FeatureDictionary, OWN_CHECK], best: int = TOP_FEATURES) -> Features:
        """What a sparse autoencoder or a transcoder finds in the text: `model.dictionary(…)` opens one.

        `best`: how many features of each token.
        """
        return features(self, dictionary, best)

    def inside(self, path: str = "", position: int | str = -1) -> Inside:
        """One level of the model with this text's numbers, at one position.

        `path`: '' is the whole model, `blocks.3` a block, `blocks.3.attention.heads.4` a head, with `.2` behind it its score
        for the token at position 2, `blocks.3.mlp.hidden.17` a neuron. One that does not exist gives the nearest that does.
        """
        return inside(self, path, position)
