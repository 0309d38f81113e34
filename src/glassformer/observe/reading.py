"""A text that a model has read: every view of it, each by one call and in a pass of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from glassformer.features.dictionary import FeatureDictionary
from glassformer.ground.arguments import checked_class
from glassformer.ground.errors import InputError
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.observe.activations import Activations
from glassformer.observe.attention import attention, attention_maps, heads
from glassformer.observe.attribution import attribution
from glassformer.observe.attribution_graph import THRESHOLD, attribution_graph
from glassformer.observe.circuits import BEST, text_circuit
from glassformer.observe.experts import experts
from glassformer.observe.features import TOP as TOP_FEATURES
from glassformer.observe.features import features
from glassformer.observe.inside import inside
from glassformer.observe.lens import lens
from glassformer.observe.protocols import Floats
from glassformer.observe.trace import TOP, trace_text
from glassformer.observe.tuned_lens import TunedLens
from glassformer.views.attention import AttentionKind, AttentionMap, Heads
from glassformer.views.attention_maps import AttentionMaps
from glassformer.views.attribution import Attribution, ScoreMetric
from glassformer.views.attribution_graph import AttributionGraph
from glassformer.views.circuit import HeadCircuit
from glassformer.views.experts import Experts
from glassformer.views.features import Features
from glassformer.views.inside import Inside
from glassformer.views.lens import Lens
from glassformer.views.saliency import Baseline, MetricName, Saliency, SaliencyMethod
from glassformer.views.trace import Trace

if TYPE_CHECKING:
    from glassformer.observe.differentiation import MetricFunction


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

    def lens(
        self,
        positions: Sequence[int | str] | None = None,
        *,
        tuned: TunedLens | None = None,
        progress: Progress | None = None,
    ) -> Lens:
        """What each layer would predict at some positions: the last few, unless others are named.

        `tuned`: a tuned lens, from `model.read_many(texts).train_lens()` or `model.load_lens(path)`.
        """
        return lens(self, positions, tuned=tuned, progress=progress)

    def attribution(
        self, position: int | str = -1, token: int | str | None = None, against: int | str | None = None, *,
        metric: ScoreMetric = "lead", centred: bool = False,
    ) -> Attribution:  # fmt: skip
        """What each block and head added to a token's lead: the best one's after this position, or another's.

        `against`: the token that it leads over, by default the runner-up. `metric`: the 'lead', or the 'logit' itself.
        `centred`: the logit, and each part's share, less the mean over the vocabulary.
        """
        return attribution(self, position, token, against, metric=metric, centred=centred)

    def graph(
        self, position: int | str = -1, token: int | str | None = None, against: int | str | None = None, *,
        metric: ScoreMetric = "lead", centred: bool = False, threshold: float = THRESHOLD,
    ) -> AttributionGraph:  # fmt: skip
        """From which tokens and parts, and through which heads, a token's lead came; its edges sum to it.

        `token`, `against`, `metric` and `centred` as in `attribution`. `threshold`: edges below this share of it are pruned.
        """
        return attribution_graph(self, position, token, against, metric=metric, centred=centred, threshold=threshold)

    def circuit(self, layer: int, head: int, *, distance: int = 0, best: int = BEST) -> HeadCircuit:
        """What a head looks for and writes, for the tokens of this text, and what it wrote at each position.

        `distance`: how many tokens back keys stand, for heads with RoPE; 0: no positions. `best`: how many tokens to list.
        """
        return text_circuit(self, layer, head, distance=distance, best=best)

    def saliency(
        self,
        token: int | str | None = None,
        against: int | str | None = None,
        position: int | str | None = None,
        *,
        metric: Annotated[MetricName | MetricFunction, OWN_CHECK] = "lead",
        method: SaliencyMethod = "leave-one-out",
        baseline: Baseline | None = None,
        steps: int | None = None,
        progress: Progress | None = None,
    ) -> Saliency:
        """How much each token of the text matters to one number of the model's output: what that loses without it.

        Args:
            token: whose lead or logit it is, or which label's; by default the best.
            against: the one that it leads over; by default the runner-up, as in `attribution`.
            position: where the logits are read: by default after the text, or in its gap.
            metric: 'lead', 'logit', 'log-probability', the text's 'loss', or a function of its logits that returns a tensor.
            method: 'leave-one-out', or by gradients: 'input-x-gradient', 'gradient-norm', or 'integrated', which sum to what
                they explain.
            baseline: of integrated gradients: the 'mean' of all tokens' vectors (the default), the 'pad' token's, or 'zero'.
            steps: of integrated gradients; by default as many as bring the error of their sum within a twentieth.
            progress: called as (tokens or steps so far, the most there can be).
        """
        from glassformer.observe.saliency import saliency

        return saliency(
            self, token, against, position, metric=metric, method=method, baseline=baseline, steps=steps, progress=progress
        )

    def gradients(
        self,
        *patterns: str,
        token: int | str | None = None,
        against: int | str | None = None,
        position: int | str | None = None,
        metric: Annotated[MetricName | MetricFunction, OWN_CHECK] = "lead",
    ) -> dict[str, Floats]:
        """The gradient of a metric at any number of sites, by names or patterns, all in one pass there and back.

        Each has the shape of `values(…)` there; the metric is chosen as for `saliency`.
        """
        from glassformer.observe.differentiation import Differentiation
        from glassformer.observe.metrics import resolve_metric

        sites = self.sites(*patterns)
        if not sites:
            raise InputError("name the sites whose gradients are wanted, such as 'blocks.*.residual'.")
        target = resolve_metric(self, metric, token, against, position).target
        return Differentiation(self).site_gradients(target, sites)

    def experts(self, *, progress: Progress | None = None) -> Experts:
        """To which experts each token goes, layer by layer, and how evenly the tokens are spread over them."""
        return experts(self, progress=progress)

    def features(self, dictionary: FeatureDictionary, best: int = TOP_FEATURES) -> Features:
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
