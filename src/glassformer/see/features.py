"""Features: what a dictionary finds in a text, token by token, and what the model loses by the reconstruction.

The features of a text are those of what was written: the template around that is left out, and the first token.

The explained variance is 1 − Σ(error²) / Σ(deviation from the mean²). In most decoders the first token's numbers are huge,
whatever it is, since others attend to it where they have nothing to attend to: nearly all of the variance is then that one
token's, so that of the later tokens is given too. The loss recovered is how much of what the site is
worth survives when its numbers are replaced by their reconstruction: 1 is all, 0 is as if they were zero.

Shapes: inputs (tokens, width), outputs (tokens, output width), activations (tokens, features).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from glassformer.engine.protocol import Feed, Want
from glassformer.features.dictionary import FeatureDictionary, FeatureLabel, from_token_rows, token_rows
from glassformer.ground.candidates import log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import GlassError, InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import NamedProgress
from glassformer.ground.sites import ENCODER, Watch
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.page.document import Column, Page, PagePart, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import abbreviate_list, pluralize, visible
from glassformer.see.activations import CHUNK_TOKENS, Activations
from glassformer.see.circuits import BestTokens
from glassformer.see.explain.words import token_origins
from glassformer.see.feature_training import FeatureKind, FeatureTraining
from glassformer.see.head_weights import unembedding_blocks
from glassformer.see.linear_walk import direct_effect
from glassformer.see.passes import open_row
from glassformer.see.protocols import ModelLike
from glassformer.see.recorded_activations import RecordedActivations
from glassformer.see.view import Floats, View
from glassformer.steering.library import Library
from glassformer.steering.steer import check_dictionary
from glassformer.steering.vector import token_site

if TYPE_CHECKING:
    from glassformer.see.activation_rows import SiteRows

MAX_TOKENS = 24
SHOWN_FEATURES = 4  # of a token, in its row


@dataclass(frozen=True)
class FeatureActivation:
    """How active a feature is at a token."""

    feature: int
    activation: float
    label: str = ""  # what it is most active at, if the dictionary's files say so


@dataclass(frozen=True)
class TokenFeatures:
    """What a dictionary finds at one token."""

    position: int
    token: str
    active: int  # features that are not 0
    norm: float  # the length of what is reconstructed
    error: float  # the length of what the reconstruction leaves
    features: tuple[FeatureActivation, ...]  # the most active


@dataclass(frozen=True)
class FeatureSummary:
    """One feature over the whole text."""

    feature: int
    largest: float
    mean: float
    active_tokens: int
    positions: tuple[int, ...]  # where it is most active, strongest first
    promotes: tuple[str, ...]  # the tokens whose logits its direction raises most; empty: not of a decoder's stream
    label: str = ""  # what it is most active at in the texts of its training, if the dictionary's files say so
    context: str = ""  # the strongest place there


@dataclass(frozen=True)
class Reconstruction:
    """How well a text's numbers are explained."""

    mean_squared_error: float
    explained_variance: float | None  # None: all tokens have the same numbers
    later_explained_variance: float | None  # the same of all tokens but the first
    cosine: float
    active: float  # features at a token, on average (L0)
    loss: float | None  # nats for a token, as the model is; None: it predicts no next token
    spliced_loss: float | None  # with the reconstruction in the place of the numbers
    zeroed_loss: float | None  # with zeros there
    loss_recovered: float | None  # None: zeros cost nothing


@dataclass(frozen=True)
class Features(View):
    """What a dictionary of features finds in a text."""

    SCHEMA = "glassformer.features/1"

    model: str
    dictionary: str
    size: int
    site: str
    site_out: str  # of a transcoder, what it predicts
    tokens: tuple[TokenFeatures, ...]
    features: tuple[FeatureSummary, ...]  # the most active of the text
    reconstruction: Reconstruction

    def page(self, everything: bool = False) -> Page:
        title = f"features of {self.dictionary} in {self.model}"
        where = self.site if self.site == self.site_out else f"{self.site} → {self.site_out}"
        return Page.titled(
            title,
            Paragraph(f"{self.size:,} features at {where}. {_explained(self.reconstruction)}"),
            _token_table(self, everything),
            Paragraph("The most active features of the text:"),
            _feature_table(self, everything),
        )


@dataclass(frozen=True)
class KnownDictionary:
    """A dictionary of features that can be named."""

    name: str
    site: str
    site_out: str
    size: int
    problem: str | None


@dataclass(frozen=True)
class FeatureDictionaries(View):
    """The dictionaries of features that there are, and whether they fit a model."""

    SCHEMA = "glassformer.feature-dictionaries/1"

    model: str
    dictionaries: tuple[KnownDictionary, ...]

    def page(self, everything: bool = False) -> Page:
        title = f"dictionaries of features for {self.model}"
        sites = [d.site if d.site_out == d.site else f"{d.site} → {d.site_out}" for d in self.dictionaries]
        rows = [
            TableRow((d.name, site, f"{d.size:,}", d.problem or "fits"))
            for d, site in zip(self.dictionaries, sites, strict=True)
        ]
        fits = Column("this model", min_width=10, wraps=True)
        columns = (Column("name"), Column("site"), Column("features", "number"), fits)
        body: PagePart = Table(columns, tuple(rows)) if rows else Paragraph("There are none.")
        return Page.titled(title, body)


def _explained(result: Reconstruction) -> str:
    parts = [f"On average {result.active:.1f} are active"]
    if result.explained_variance is not None:
        later = result.later_explained_variance
        but_first = "" if later is None else f", {later:.1%} without the first token"
        parts.append(f"they explain {result.explained_variance:.1%} of the variance{but_first}")
    text = ", and ".join(parts) + f" (mean squared error {result.mean_squared_error:.3g}, cosine {result.cosine:.3f})."
    if result.loss is None or result.spliced_loss is None or result.zeroed_loss is None:
        return text
    recovered = "" if result.loss_recovered is None else f": {result.loss_recovered:.1%} is recovered"
    return (
        f"{text} The loss is {result.loss:.3f} nats; {result.spliced_loss:.3f} with the reconstruction in their place, and "
        f"{result.zeroed_loss:.3f} with zeros{recovered}."
    )


def _token_table(view: Features, everything: bool) -> Table:
    columns = (
        Column("", "number"), Column("token", "token"), Column("active", "number", priority=5),
        Column("error", "number", priority=4), Column("most active features", min_width=20, wraps=True),
    )  # fmt: skip
    rows = []
    for token in view.tokens:
        shown = token.features if everything else token.features[:SHOWN_FEATURES]
        share = f"{token.error / token.norm:.0%}" if token.norm else "–"
        rows.append(
            TableRow((str(token.position), visible(token.token), str(token.active), share, "  ".join(map(_short, shown))))
        )
    return Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_TOKENS))


def _feature_table(view: Features, everything: bool) -> Table:
    texts = {token.position: visible(token.token) for token in view.tokens}
    columns: list[tuple[Column, Callable[[FeatureSummary], str]]] = [
        (Column("feature", "number"), lambda each: str(each.feature)),
        (Column("label", min_width=12), lambda each: each.label),
        (Column("largest", "number"), lambda each: f"{each.largest:.3g}"),
        (Column("tokens", "number", priority=4), lambda each: pluralize(each.active_tokens, "token")),
        (
            Column("most active at", min_width=12),
            lambda each: abbreviate_list([texts[position] for position in each.positions]),
        ),
        (Column("promotes", min_width=12, priority=6), lambda each: " ".join(map(visible, each.promotes))),
    ]
    if not any(each.label for each in view.features):
        del columns[1]
    return Table.of(view.features, *columns, limit=None if everything else MAX_TOKENS)


def _short(each: FeatureActivation) -> str:
    label = f" {each.label}" if each.label else ""
    return f"{each.feature}{label} ({each.activation:.3g})"


TOP, MOST = 10, 20  # features of a token, and of a text
PLACES, PROMOTED = 5, 5  # tokens that a feature is most active at, and that it promotes
BATCH = 256  # tokens that are encoded at once: activations of many features are large
STREAM_SITES = ("embedding", "residual", "middle", "update", "crossed")  # whose numbers are the stream's, or added to it


@operation()
def dictionary(
    model: ModelLike,
    name: str | os.PathLike[str],
    site: Annotated[str | None, about("Where it reads, if its files do not say.")] = None,
    site_out: Annotated[str | None, about("What it predicts, if its files do not say.")] = None,
) -> FeatureDictionary:
    """A sparse autoencoder or a transcoder, by name or path, for `read(…).features`, and to clamp and steer by.

    SAELens' folders, Gemma Scope's .npz and .safetensors files.
    """
    opened = model.library.dictionary(os.fspath(name), site, site_out)
    check_dictionary(opened, model.blueprint, model.name)
    return opened


@operation()
def train_features(
    model: ModelLike,
    source: Annotated[
        str | Iterable[str] | RecordedActivations,
        OWN_CHECK,
        about(
            "A text, the pieces of a long one, or what `read_many(…).record(…)` gave. No more is read than is needed.",
            typed=False,
        ),
    ],
    site: Annotated[str, about("Whose activations: blocks.8.residual, blocks.8.mlp.update, ….")],
    site_out: Annotated[
        str | None, about("Train a transcoder: what it predicts, such as blocks.8.mlp.update from blocks.8.mlp.input.")
    ] = None,
    *,
    features: Annotated[int | None, about("How many; by default 8 for each number at the site.", minimum=1)] = None,
    kind: Annotated[FeatureKind, about("topk; batchtopk, written as a JumpReLU; or l1.")] = "topk",
    k: Annotated[int, about("Active features of a token.", "-k", minimum=1)] = 32,
    l1: Annotated[float, about("What activations cost, of the kind l1.")] = 1.0,
    steps: Annotated[int, about("Steps of the training.", minimum=1)] = 2000,
    batch_size: Annotated[int, about("Tokens of a step.", minimum=1)] = 512,
    learning_rate: Annotated[float, about("At its highest.")] = 1e-3,
    seed: Annotated[int, about("The same seed gives the same features.", minimum=0)] = 0,
    length: Annotated[
        int | None, about("Tokens of the text that the model reads at once; by default 128.", minimum=2)
    ] = None,
    name: Annotated[str, about("The dictionary's.", typed=False)] = "features",
    progress: NamedProgress | None = None,
) -> tuple[FeatureDictionary, FeatureTraining]:
    """A sparse autoencoder of the activations at a site, or a transcoder between two sites, and how it learned."""
    from glassformer.see.activation_rows import activation_rows

    return features_of_rows(
        activation_rows(model, source, site, length, site_out), model.name, name, progress, features=features, kind=kind,
        k=k, l1=l1, steps=steps, batch_size=batch_size, learning_rate=learning_rate, seed=seed,
    )  # fmt: skip


def features_of_rows(
    rows: SiteRows, model: str, name: str, progress: NamedProgress | None, *, features: int | None = None, **settings: Any
) -> tuple[FeatureDictionary, FeatureTraining]:
    """The same of rows that a model of this name gave."""
    from glassformer.see import fit_features

    chosen = fit_features.FeatureTrainingSettings(features=8 * rows.width if features is None else features, **settings)
    return fit_features.train_features(
        rows, chosen, site=rows.site, site_out=rows.site_out or "", predicted=rows.predicted, model=model, name=name,
        progress=progress,
    )  # fmt: skip


@operation(
    route="features",
    chosen_by=("dictionary", "prompt"),
    needs={"site": "dictionary", "site_out": "dictionary"},
    section="Features and many texts",
    example='glass features --sae ./resid-8 --raw "The capital of France is"   ·   '
    'glass features --sae params.npz --site blocks.20.residual "how are you?"',
    verb_help="Show which features of a sparse autoencoder a text activates; without a text, list the autoencoders.",
)
def features(
    reading: Activations,
    dictionary: Annotated[
        FeatureDictionary | Literal["auto"],
        about(
            "A sparse autoencoder or a transcoder, by name or path; by default one that comes with the package for "
            "this model.",
            "--sae",
            metavar="DIR",
            opened_by="dictionary",
        ),
    ] = "auto",
    best: Annotated[int, about("Features to keep of each token.", minimum=1, maximum=1000, served_maximum=64)] = TOP,
) -> Features:
    """Show which features of a sparse autoencoder a text activates, token by token, and how well they explain it.

    `model.dictionary(…)` opens one.
    """
    model = reading.model
    if dictionary == "auto":
        if (name := model.library.shipped_dictionary) is None:
            raise InputError(
                f"no dictionary of features comes with the package for {model.name}. Name one of those `glass features` "
                "lists, or train one with `glass train-features`."
            )
        dictionary = model.library.dictionary(name)
    check_dictionary(dictionary, model.blueprint, model.name)
    if best < 1:
        raise InputError(f"of each token {best} features were asked for; at least 1.")
    inputs, outputs = _site_rows(reading, dictionary)
    listed = _listed(reading, dictionary)
    activity, count = _Activity(dictionary.size), 0
    texts = _token_texts(reading, dictionary)
    rebuilt = np.empty_like(outputs)
    tokens = []
    for start in range(0, len(inputs), BATCH):
        part = inputs[start : start + BATCH]
        activations = dictionary.encode(part)
        rebuilt[start : start + BATCH] = dictionary.decode(activations, part)
        activity.add(activations[[position - start for position in listed if start <= position < start + BATCH]])
        count += int(np.count_nonzero(activations))
        for row, top in enumerate(_top_features(dictionary, activations, best)):
            position = start + row
            error = float(np.linalg.norm(outputs[position] - rebuilt[position]))
            active = int(np.count_nonzero(activations[row]))
            tokens.append(
                TokenFeatures(position, texts[position], active, float(np.linalg.norm(outputs[position])), error, top)
            )
    summaries = tuple(_summaries(dictionary, activity, inputs[listed], listed, model))
    result = _reconstruction(reading, dictionary, outputs, rebuilt, count / len(inputs))
    return Features(
        model.name, dictionary.name, dictionary.size, dictionary.site, dictionary.site_out, tuple(tokens), summaries, result
    )


@operation(route="feature-dictionaries", passes=False)
def feature_dictionaries(model: ModelLike) -> FeatureDictionaries:
    """List the dictionaries of features that can be named, and whether each fits the model."""
    library = model.library
    names = sorted(library.dictionaries(), key=_numbers_in_order)
    return FeatureDictionaries(model.name, tuple(_known(model, library, name) for name in names))


def _numbers_in_order(name: str) -> list[str | int]:
    """What sorts mlp-4 before mlp-12."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


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
        self.largest = np.maximum(self.largest, activations.max(axis=0, initial=0.0))
        self.sums += activations.sum(axis=0)
        self.counts += np.count_nonzero(activations, axis=0)

    @property
    def best(self) -> list[int]:
        """The features that are most active anywhere, the strongest first."""
        order = np.argsort(-self.largest, kind="stable")[:MOST]
        return [int(feature) for feature in order if self.largest[feature] > 0]


def _summaries(
    dictionary: FeatureDictionary, activity: _Activity, inputs: Floats, positions: Sequence[int], model: ModelLike
) -> Iterator[FeatureSummary]:
    """The strongest features of the tokens at some positions."""
    best = activity.best
    if not best:
        return
    columns = [dictionary.encode_some(inputs[start : start + BATCH], best) for start in range(0, len(inputs), BATCH)]
    activations = np.concatenate(columns)
    promoted = _promoted(model, dictionary, best)
    for column, feature in enumerate(best):
        order = np.argsort(-activations[:, column], kind="stable")[:PLACES]
        places = tuple(positions[row] for row in order.tolist() if activations[row, column] > 0)
        mean = float(activity.sums[feature] / len(inputs))
        largest, count = float(activity.largest[feature]), int(activity.counts[feature])
        label = dictionary.labels[feature] if dictionary.labels else FeatureLabel("", "")
        yield FeatureSummary(feature, largest, mean, count, places, promoted[column], label.label, label.context)


def _promoted(model: ModelLike, dictionary: FeatureDictionary, chosen: Sequence[int]) -> list[tuple[str, ...]]:
    """The tokens whose logits each feature's direction raises most: through the norms' weights, without any bias.

    The head of an encoder is not linear, so that there a direction by itself raises no token.
    """
    site, ops = dictionary.site_out, model.blueprint.ops
    if site.startswith(ENCODER) or not site.endswith(STREAM_SITES) or not model.writes:
        return [()] * len(chosen)
    index = next(index for index, op in enumerate(ops) if op.site == site)
    directions = direct_effect(model, index, np.stack([dictionary.direction(feature) for feature in chosen]))
    best = BestTokens(PROMOTED)
    for rows, block in unembedding_blocks(model):
        best.add(rows, np.asarray(directions @ block.T, np.float32))
    return [tuple(token.text for token in tokens) for tokens in best.tokens(model)]


def _top_features(dictionary: FeatureDictionary, activations: Floats, best: int) -> list[tuple[FeatureActivation, ...]]:
    """The most active features of each token, the strongest first."""
    count = min(best, activations.shape[1])
    chosen = np.argpartition(-activations, count - 1, axis=1)[:, :count]
    rows = []
    for row, numbers in enumerate(chosen.tolist()):
        order = sorted(numbers, key=lambda feature: (-activations[row, feature], feature))
        active = [feature for feature in order if activations[row, feature] > 0]
        rows.append(tuple(FeatureActivation(each, float(activations[row, each]), dictionary.label(each)) for each in active))
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


def _listed(reading: Activations, dictionary: FeatureDictionary) -> list[int]:
    """The positions of the tokens whose features a text's list has."""
    if dictionary.site.startswith(ENCODER):
        origins = token_origins(reading.source_tokens, len(reading.source_tokens), None, None)
    else:
        origins = token_origins(reading.tokens, reading.prompt_length, reading.contents, reading.second)
    written = [position for position, origin in enumerate(origins) if origin != "template"] or [*range(len(origins))]
    return [position for position in written if position] or written


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
    with open_row(executor, reading.source) as row:
        for start in range(0, len(ids) - 1, CHUNK_TOKENS):
            part = ids[start : min(start + CHUNK_TOKENS, len(ids) - 1)]
            (scores,) = executor.run([Feed(row, part, Want.ALL, watch=watch, text_length=len(ids))])
            for index in range(len(part)):
                total -= float(log_softmax(scores.host(index))[ids[start + index + 1]])
    return total / (len(ids) - 1)
