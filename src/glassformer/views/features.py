"""Features: what a dictionary finds in a text, token by token, and how well it explains the numbers there.

The explained variance is 1 − Σ(error²) / Σ(deviation from the mean²). In most decoders the first token's numbers are huge,
whatever it is, since others attend to it where they have nothing to attend to: nearly all of the variance is then that one
token's, so that of the later tokens is given too. The loss recovered is how much of what the site is
worth survives when its numbers are replaced by their reconstruction: 1 is all, 0 is as if they were zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Column, Heading, Page, PagePart, Paragraph, Table, TableRow, elide_middle
from glassformer.page.format import abbreviate_list, pluralize, visible
from glassformer.views.view import View

MAX_TOKENS = 24
SHOWN_FEATURES = 4  # of a token, in its row


@dataclass(frozen=True)
class FeatureActivation:
    """How active a feature is at a token."""

    feature: int
    activation: float


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
        return draw(self, everything)


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
        rows = [TableRow((d.name, d.site, f"{d.size:,}", d.problem or "fits")) for d in self.dictionaries]
        fits = Column("this model", min_width=10, wraps=True)
        columns = (Column("name"), Column("site"), Column("features", "number"), fits)
        body: PagePart = Table(columns, tuple(rows)) if rows else Paragraph("There are none.")
        return Page(title, (Heading(title), body))


def draw(view: Features, everything: bool = False) -> Page:
    title = f"features of {view.dictionary} in {view.model}"
    where = view.site if view.site == view.site_out else f"{view.site} → {view.site_out}"
    return Page(
        title,
        (
            Heading(title),
            Paragraph(f"{view.size:,} features at {where}. {_explained(view.reconstruction)}"),
            _token_table(view, everything),
            Paragraph("The most active features of the text:"),
            _feature_table(view, everything),
        ),
    )


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
    columns = (
        Column("feature", "number"), Column("largest", "number"), Column("tokens", "number", priority=4),
        Column("most active at", min_width=12), Column("promotes", min_width=12, priority=6),
    )  # fmt: skip
    texts = {token.position: visible(token.token) for token in view.tokens}
    rows = [
        TableRow((
            str(each.feature), f"{each.largest:.3g}", pluralize(each.active_tokens, "token"),
            abbreviate_list([texts[at] for at in each.positions]), " ".join(map(visible, each.promotes)),
        ))
        for each in view.features
    ]  # fmt: skip
    return Table(columns, tuple(rows) if everything else elide_middle(rows, MAX_TOKENS))


def _short(each: FeatureActivation) -> str:
    return f"{each.feature} ({each.activation:.3g})"
