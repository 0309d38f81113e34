"""Features of a text: the activations of a dictionary at its site, and what the model loses by the reconstruction.

Shapes: inputs (tokens, width), outputs (tokens, output width), activations (tokens, features).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from glassformer.engine.protocol import Feed, Want
from glassformer.features.dictionary import FeatureDictionary
from glassformer.features.feature_change import from_token_rows, token_rows
from glassformer.ground.candidates import log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import GlassError, InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.sites import ENCODER, Watch
from glassformer.observe.activations import CHUNK_TOKENS, Activations
from glassformer.observe.circuits import BestTokens
from glassformer.observe.head_weights import unembedding_blocks
from glassformer.observe.linear_walk import direct_effect
from glassformer.observe.protocols import Floats, ModelLike
from glassformer.steering.library import Library, local_library
from glassformer.steering.steer import check_dictionary
from glassformer.steering.token_axis import token_site
from glassformer.views.features import (
    FeatureActivation,
    FeatureDictionaries,
    Features,
    FeatureSummary,
    KnownDictionary,
    Reconstruction,
    TokenFeatures,
)

TOP, MOST = 10, 20  # features of a token, and of a text
PLACES, PROMOTED = 5, 5  # tokens that a feature is most active at, and that it promotes
BATCH = 256  # tokens that are encoded at once: activations of many features are large
STREAM_SITES = ("embedding", "residual", "middle", "update", "crossed")  # whose numbers are the stream's, or added to it


@operation(route="features")
def features(
    reading: Activations,
    dictionary: Annotated[
        FeatureDictionary,
        about("A sparse autoencoder or a transcoder, by name or path.", "--sae", metavar="DIR", opened_by="dictionary"),
    ],
    best: Annotated[int, about("Features to keep of each token.", minimum=1, maximum=1000, served_maximum=64)] = TOP,
) -> Features:
    """Show which features of a sparse autoencoder a text activates, token by token, and how well they explain it.

    `model.dictionary(…)` opens one.
    """
    model = reading.model
    check_dictionary(dictionary, model.blueprint, model.name)
    if best < 1:
        raise InputError(f"of each token {best} features were asked for; at least 1.")
    inputs, outputs = _site_rows(reading, dictionary)
    activity = _Activity(dictionary.size)
    texts = _token_texts(reading, dictionary)
    rebuilt = np.empty_like(outputs)
    tokens = []
    for start in range(0, len(inputs), BATCH):
        part = inputs[start : start + BATCH]
        activations = dictionary.encode(part)
        rebuilt[start : start + BATCH] = dictionary.decode(activations, part)
        activity.add(activations)
        for row, top in enumerate(_top_features(activations, best)):
            at = start + row
            error = float(np.linalg.norm(outputs[at] - rebuilt[at]))
            active = int(np.count_nonzero(activations[row]))
            tokens.append(TokenFeatures(at, texts[at], active, float(np.linalg.norm(outputs[at])), error, top))
    summaries = tuple(_summaries(dictionary, activity, inputs, model))
    result = _reconstruction(reading, dictionary, outputs, rebuilt, float(activity.counts.sum() / len(inputs)))
    return Features(
        model.name, dictionary.name, dictionary.size, dictionary.site, dictionary.site_out, tuple(tokens), summaries, result
    )


def known_dictionaries(model: ModelLike, library: Library | None) -> FeatureDictionaries:
    """The dictionaries of a library, and whether each fits the model."""
    library = library or local_library()
    return FeatureDictionaries(model.name, tuple(_known(model, library, name) for name in sorted(library.dictionaries())))


def _known(model: ModelLike, library: Library, name: str) -> KnownDictionary:
    try:
        dictionary = library.dictionary(name)
    except GlassError as error:
        return KnownDictionary(name, "", "", 0, str(error))
    problem = None
    try:
        check_dictionary(dictionary, model.blueprint, model.name)
    except GlassError as error:
        problem = str(error)
    return KnownDictionary(name, dictionary.site, dictionary.site_out, dictionary.size, problem)


# What is active ------------------------------------------------------------------------------------------------------


class _Activity:
    """Each feature's activity over a text, gathered batch by batch."""

    def __init__(self, size: int) -> None:
        self.largest = np.zeros(size, np.float32)
        self.sums = np.zeros(size, np.float64)
        self.counts = np.zeros(size, np.int64)

    def add(self, activations: Floats) -> None:
        self.largest = np.maximum(self.largest, activations.max(axis=0))
        self.sums += activations.sum(axis=0)
        self.counts += np.count_nonzero(activations, axis=0)

    @property
    def best(self) -> list[int]:
        """The features that are most active anywhere, the strongest first."""
        order = np.argsort(-self.largest, kind="stable")[:MOST]
        return [int(number) for number in order if self.largest[number] > 0]


def _summaries(
    dictionary: FeatureDictionary, activity: _Activity, inputs: Floats, model: ModelLike
) -> Iterator[FeatureSummary]:
    best = activity.best
    if not best:
        return
    columns = [dictionary.encode_some(inputs[at : at + BATCH], best) for at in range(0, len(inputs), BATCH)]
    activations = np.concatenate(columns)
    promoted = _promoted(model, dictionary, best)
    for column, feature in enumerate(best):
        order = np.argsort(-activations[:, column], kind="stable")[:PLACES]
        places = tuple(int(at) for at in order if activations[at, column] > 0)
        mean = float(activity.sums[feature] / len(inputs))
        largest, count = float(activity.largest[feature]), int(activity.counts[feature])
        yield FeatureSummary(feature, largest, mean, count, places, promoted[column])


def _promoted(model: ModelLike, dictionary: FeatureDictionary, chosen: Sequence[int]) -> list[tuple[str, ...]]:
    """The tokens whose logits each feature's direction raises most: through the norms' weights, without any bias.

    The head of an encoder is not linear, so that there a direction by itself raises no token.
    """
    site, ops = dictionary.site_out, model.blueprint.ops
    if site.startswith(ENCODER) or not site.endswith(STREAM_SITES) or not model.writes:
        return [()] * len(chosen)
    number = next(number for number, op in enumerate(ops) if op.site == site)
    directions = direct_effect(model, number, np.stack([dictionary.direction(feature) for feature in chosen]))
    best = BestTokens(PROMOTED)
    for rows, block in unembedding_blocks(model):
        best.add(rows, np.asarray(directions @ block.T, np.float32))
    return [tuple(token.text for token in tokens) for tokens in best.tokens(model)]


def _top_features(activations: Floats, best: int) -> list[tuple[FeatureActivation, ...]]:
    """The most active features of each token, the strongest first."""
    count = min(best, activations.shape[1])
    chosen = np.argpartition(-activations, count - 1, axis=1)[:, :count]
    rows = []
    for row, numbers in enumerate(chosen.tolist()):
        order = sorted(numbers, key=lambda number: (-activations[row, number], number))
        active = [number for number in order if activations[row, number] > 0]
        rows.append(tuple(FeatureActivation(number, float(activations[row, number])) for number in active))
    return rows


# What is explained ---------------------------------------------------------------------------------------------------


def _site_rows(reading: Activations, dictionary: FeatureDictionary) -> tuple[Floats, Floats]:
    """What the dictionary reads at each token, and what it is to reconstruct."""
    values = reading.values(*dict.fromkeys((dictionary.site, dictionary.site_out)))
    rows = []
    for site in (dictionary.site, dictionary.site_out):
        axis, _ = token_site(reading.model.blueprint, site, reading.model.name)
        rows.append(token_rows(values[site][None], axis + 1))
    return rows[0], rows[1]


def _token_texts(reading: Activations, dictionary: FeatureDictionary) -> tuple[str, ...]:
    tokens = reading.source_tokens if dictionary.site.startswith(ENCODER) else reading.tokens
    return tuple(token.text for token in tokens)


def _reconstruction(
    reading: Activations, dictionary: FeatureDictionary, outputs: Floats, rebuilt: Floats, active: float
) -> Reconstruction:
    errors = ((outputs - rebuilt) ** 2).sum()
    lengths = np.linalg.norm(outputs, axis=1) * np.linalg.norm(rebuilt, axis=1)
    cosines = (outputs * rebuilt).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
    loss, spliced, zeroed = _losses(reading, dictionary, rebuilt)
    recovered = None
    if loss is not None and spliced is not None and zeroed is not None and zeroed > loss:
        recovered = (zeroed - spliced) / (zeroed - loss)
    return Reconstruction(
        float(errors / outputs.size), _explained_variance(outputs, rebuilt), _explained_variance(outputs[1:], rebuilt[1:]),
        float(cosines.mean()), active, loss, spliced, zeroed, recovered,
    )  # fmt: skip


def _explained_variance(outputs: Floats, rebuilt: Floats) -> float | None:
    if len(outputs) < 2:
        return None
    deviations = ((outputs - outputs.mean(axis=0)) ** 2).sum()
    return float(1 - ((outputs - rebuilt) ** 2).sum() / deviations) if deviations > 0 else None


def _losses(
    reading: Activations, dictionary: FeatureDictionary, rebuilt: Floats
) -> tuple[float | None, float | None, float | None]:
    """The loss as it is, with the reconstruction in the numbers' place, and with zeros there.

    What is replaced comes after what was read, so the reconstruction of the pass that was read is that of the spliced one.
    """
    model, site = reading.model, dictionary.site_out
    if not model.writes or len(reading) < 2:
        return None, None, None
    axis, _ = token_site(model.blueprint, site, model.name)
    shape = reading.shape(site)
    rows = from_token_rows(rebuilt, axis + 1, (1, *shape))
    spliced = Change(0.0, rows, list(range(shape[axis])))
    watches = (None, Watch(changes={site: spliced}), Watch(changes={site: Change(0.0)}))
    loss, spliced_loss, zeroed_loss = (_loss(reading, watch) for watch in watches)
    return loss, spliced_loss, zeroed_loss


def _loss(reading: Activations, watch: Watch | None) -> float:
    """The loss over the text's tokens after the first, as trainings have it: their mean surprisal, in nats."""
    executor, ids, total = reading.model.executor, reading.ids, 0.0
    row = executor.open(reading.source)
    try:
        for start in range(0, len(ids) - 1, CHUNK_TOKENS):
            part = ids[start : min(start + CHUNK_TOKENS, len(ids) - 1)]
            (scores,) = executor.run([Feed(row, part, Want.ALL, watch=watch, text_length=len(ids))])
            for number in range(len(part)):
                total -= float(log_softmax(scores.host(number))[ids[start + number + 1]])
    finally:
        executor.close(row)
    return total / (len(ids) - 1)
