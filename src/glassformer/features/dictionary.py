"""A dictionary of features: a sparse autoencoder, or a transcoder, which reads at one site and predicts another.

    activations = activation(normed input · encoder + bias)        reconstruction = activations · decoder + bias

The activation is a ReLU; one with a threshold for each feature (JumpReLU, https://arxiv.org/abs/2407.14435); one that keeps
the k largest (https://arxiv.org/abs/2406.04093); or a gate (https://arxiv.org/abs/2404.16014).

Arrays of numpy go in and come out, or tensors where a model's values are such: gradients flow through these.

Shapes: inputs (tokens, width), activations (tokens, features), outputs (tokens, output width); a site's value (batch,
tokens, width), or (batch, heads, tokens, head_size), whose heads lie side by side then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.changes import Change, ComputedChange, Where, like
from glassformer.ground.errors import InputError, SiteError
from glassformer.ground.sites import where_of

Floats: TypeAlias = npt.NDArray[np.float32]
Values: TypeAlias = Any  # an array of numpy, or a tensor
Normalization: TypeAlias = Literal["none", "layer_norm", "constant_norm_rescale"]
NORM_EPSILON = 1e-5  # of SAELens' layer_norm
TINY = float(np.finfo(np.float32).tiny)
QUIETLY = np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a file may hold numbers that give infinite ones


@dataclass(frozen=True, eq=False)
class FeatureGate:
    """What a gated autoencoder has beside: which features are open, and how strong they are then."""

    bias: Floats  # (features)
    magnitude: Floats  # the logarithm of what pre-activations are multiplied by, (features)
    magnitude_bias: Floats


@dataclass(frozen=True)
class FeatureLabel:
    """What a feature is most active at, in the texts of its training."""

    label: str  # tokens
    context: str  # the strongest one, with what stands before it


@dataclass(frozen=True, eq=False)
class FeatureDictionary:
    """The weights of an autoencoder or a transcoder, and where they are attached."""

    encoder: Floats  # (width, features)
    encoder_bias: Floats  # (features)
    decoder: Floats  # (features, output width)
    decoder_bias: Floats  # (output width)
    site: str = ""  # where it reads
    site_out: str = ""  # what it reconstructs: the same site, or a transcoder's other one
    name: str = ""
    threshold: Floats | None = None  # (features): below it a feature is 0
    k: int | None = None  # how many of a token's features are not 0 at most
    gate: FeatureGate | None = None
    skip: Floats | None = None  # of a transcoder, a linear path beside the features, (output width, width)
    subtracts_bias: bool = True  # the decoder's bias, from the input
    normalization: Normalization = "none"
    rescaled: bool = False  # activations are counted in lengths of the decoder's rows
    model: str = ""  # the one that it was trained on, as its file says
    labels: tuple[FeatureLabel, ...] = ()  # of all features, or of none

    @property
    def size(self) -> int:
        """How many features it has."""
        return int(self.decoder.shape[0])

    def label(self, feature: int) -> str:
        """What a feature is most active at, if its files say so."""
        return self.labels[feature].label if self.labels else ""

    @property
    def is_transcoder(self) -> bool:
        return self.site != self.site_out

    @cached_property
    def _lengths(self) -> Floats:
        lengths: Floats = np.linalg.norm(self.decoder, axis=1).astype(np.float32)
        return lengths

    # Forward ----------------------------------------------------------------------------------------------------

    @QUIETLY
    def encode(self, inputs: Values) -> Values:
        """The activations of all features."""
        return self._activate(self._normed(inputs), slice(None))

    @QUIETLY
    def encode_some(self, inputs: Values, features: Sequence[int]) -> Values:
        """The activations of a few features, (tokens, chosen): without the others, unless they compete for k places."""
        if self.k is not None:
            return self.encode(inputs)[:, features]
        return self._activate(self._normed(inputs), features)

    @QUIETLY
    def decode(self, activations: Floats, inputs: Floats) -> Floats:
        """The reconstruction by these activations; `inputs` say how they were normed."""
        scale, offset = self.output_scale(inputs)
        weights = activations / self._lengths if self.rescaled else activations
        outputs: Floats = ((weights @ self.decoder + self.decoder_bias) * scale + offset).astype(np.float32)
        return outputs if self.skip is None else outputs + inputs @ self.skip.T

    def direction(self, feature: int) -> Floats:
        """What one unit of a feature adds to its site."""
        row: Floats = self.decoder[feature]
        return row / self._lengths[feature] if self.rescaled else row

    def output_scale(self, inputs: Values) -> tuple[Values | float, Values | float]:
        """What the reconstruction of each token is multiplied by, and what is added: the inverse of how it was normed."""
        if self.normalization == "none" or self.is_transcoder:
            return 1.0, 0.0
        if self.normalization == "constant_norm_rescale":
            return _root_mean_square(inputs, inputs.shape[-1]), 0.0
        mean = inputs.mean(axis=-1, keepdims=True)
        return _deviation(inputs - mean), mean

    def _normed(self, inputs: Values) -> Values:
        if self.normalization == "constant_norm_rescale":
            inputs = inputs / _root_mean_square(inputs, inputs.shape[-1])
        elif self.normalization == "layer_norm":
            centred = inputs - inputs.mean(axis=-1, keepdims=True)
            inputs = centred / (_deviation(centred) + NORM_EPSILON)
        return inputs - like(self.decoder_bias, inputs) if self.subtracts_bias else inputs

    def _activate(self, normed: Values, chosen: slice | Sequence[int]) -> Values:
        """The activations of all features, or of the chosen ones."""
        products = normed @ like(self.encoder[:, chosen], normed)
        if self.gate is not None:
            magnitude, magnitude_bias, bias = (
                like(values[chosen], normed)
                for values in (np.exp(self.gate.magnitude, dtype=np.float64), self.gate.magnitude_bias, self.gate.bias)
            )
            return (products * magnitude + magnitude_bias).clip(min=0) * (products + bias > 0)
        before = products + like(self.encoder_bias[chosen], normed)
        if self.rescaled:
            before = before * like(self._lengths[chosen], normed)
        activations = before.clip(min=0)
        if self.threshold is not None:
            activations = activations * (before > like(self.threshold[chosen], normed))
        return activations if self.k is None else largest(activations, self.k)

    # Changes ----------------------------------------------------------------------------------------------------

    def check_feature(self, feature: int) -> int:
        if isinstance(feature, bool) or not isinstance(feature, int) or not 0 <= feature < self.size:
            name = self.name or "the dictionary"
            raise InputError(f"{name} has no feature {feature!r}: they count from 0 to {self.size - 1}.")
        return feature

    def clamp(self, values: Mapping[int, float]) -> dict[str, Change]:
        """Features held at values of your choice at every token; 0 ablates. What the dictionary does not explain stays."""
        features = tuple(self.check_feature(feature) for feature in values)
        change = FeatureChange(dictionary=self, features=features, values=tuple(map(float, values.values())))
        return {self.site_out: change}


def _root_mean_square(values: Values, count: float) -> Values:
    """The root of the mean of each row's `count` squares; never 0, where it would have no gradient."""
    return ((values * values).sum(axis=-1, keepdims=True) / count).clip(min=TINY) ** 0.5


def _deviation(centred: Values) -> Values:
    """The standard deviation of each row, as of a sample."""
    return _root_mean_square(centred, max(centred.shape[-1] - 1, 1))


def largest(activations: Values, k: int) -> Values:
    """Activations with all but each row's k largest set to 0."""
    if k >= activations.shape[-1]:
        return activations
    if not isinstance(activations, np.ndarray):
        return activations * (activations * 0).scatter(-1, activations.topk(k).indices, 1)
    kept = np.argpartition(activations, -k, axis=-1)[..., -k:]
    sparse = np.zeros_like(activations)
    np.put_along_axis(sparse, kept, np.take_along_axis(activations, kept, -1), -1)
    return sparse


@dataclass(frozen=True, slots=True)
class FeatureChange(ComputedChange):
    """Some features of a dictionary, each held at a value: what they add is replaced, and the rest of the vector stays.

    A transcoder's features are read at one site, and what they add is replaced at a later site of the same pass.
    """

    dictionary: FeatureDictionary | None = None
    features: tuple[int, ...] = ()
    values: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        assert self.dictionary is not None
        held = ", ".join(f"{feature} at {value:g}" for feature, value in zip(self.features, self.values, strict=True))
        return f"{self.dictionary.name} (features held: {held})"

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.dictionary.site,) if self.dictionary is not None and self.dictionary.is_transcoder else ()

    def apply(self, value: Any, where: Where) -> Any:
        assert self.dictionary is not None
        site = self.dictionary.site if self.inputs else where.site
        read = where.values[site] if self.inputs else value
        inputs = token_rows(read, where_of(site, where.start).tokens(read)[0])
        try:
            activations = self.dictionary.encode_some(inputs, list(self.features))
        except (RuntimeError, ValueError) as error:
            raise SiteError(f"{self.dictionary.name} does not fit {site}: {str(error).splitlines()[0]}.") from error
        directions = np.stack([self.dictionary.direction(feature) for feature in self.features])
        missing = like(np.array(self.values), inputs) - activations
        added = missing @ like(directions, inputs) * self.dictionary.output_scale(inputs)[0]
        return value + like(from_token_rows(added, where.tokens(value)[0], value.shape), value)


def token_rows(value: Any, axis: int) -> Any:
    """A row for each token, with all that it has at a site, in at least 32 bits."""
    rows = value.swapaxes(1, axis).reshape(value.shape[0] * value.shape[axis], -1)
    if isinstance(rows, np.ndarray):
        return np.ascontiguousarray(rows, np.float32)
    return rows if rows.dtype.itemsize >= 4 else rows.float()


def from_token_rows(rows: Any, axis: int, shape: Sequence[int]) -> Any:
    """The inverse of `token_rows`, for a site's value of this shape."""
    batch, *rest = shape
    tokens = rest.pop(axis - 1)
    return rows.reshape(batch, tokens, *rest).swapaxes(1, axis)
