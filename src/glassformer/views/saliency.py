"""Saliency: how much each token of a text matters to what the model makes of it, by leaving it out, or by gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.page.document import Heading, Page, PagePart, Paragraph, TokenStrip
from glassformer.page.format import abbreviate_list, pluralize, visible
from glassformer.views.patching import AnswerToken
from glassformer.views.view import ArrayView

SaliencyMethod: TypeAlias = Literal["leave-one-out", "input-x-gradient", "gradient-norm", "integrated"]
MetricName: TypeAlias = Literal["lead", "logit", "log-probability", "loss", "function"]
Baseline: TypeAlias = Literal["zero", "pad", "mean"]
MAX_TOKENS = 64  # unless everything is shown
METHODS = {
    "leave-one-out": "leave one out: what it loses when a token is left out of the text",
    "input-x-gradient": "input × gradient: a token's vector times the gradient at it",
    "gradient-norm": "the norm of the gradient at a token's vector: how much a small change of it could do",
    "integrated": "integrated gradients: the gradient, gathered on the way from the baseline to the text",
}
BASELINES = {"zero": "vectors of zeros", "pad": "the padding token's vector", "mean": "the mean of all tokens' vectors"}

RELIABLE_SHARE = 0.1  # of the difference: where the sum is further off, nobody should read the values
UNRELIABLE = (
    "\nDo not rely on these values: the sum is too far off, since the metric jumps on the way from this baseline. "
    "Take another baseline or metric, or input-x-gradient."
)


@dataclass(frozen=True)
class SalientToken:
    """A token, and how much it matters."""

    position: int
    id: int
    text: str
    in_source: bool  # of an encoder-decoder: whether the encoder reads it
    value: float


@dataclass(frozen=True)
class PathSum:
    """How well integrated gradients sum up: the values should together be the difference that they explain."""

    baseline: Baseline
    baseline_value: float  # of the metric
    steps: int  # at which gradients were taken
    error: float  # the sum of the tokens' values minus the difference of the metric's


@dataclass(frozen=True)
class SignCheck:
    """How many of the strongest tokens have the sign of what the metric loses when they are left out."""

    checked: int
    agree: int


@dataclass(frozen=True)
class Saliency(ArrayView):
    """How much each token of a text matters to one number of the model's output."""

    SCHEMA = "glassformer.saliency/1"

    model: str
    method: SaliencyMethod
    metric: MetricName
    position: int | None  # where its logits are; None: of the whole text
    token: AnswerToken | None  # or label, whose logit or log-probability it is
    against: AnswerToken | None  # that the token leads over
    value: float  # of the metric
    tokens: tuple[SalientToken, ...]  # without those that cannot be left out, where that is the method
    path: PathSum | None  # of integrated gradients
    changes: tuple[str, ...]  # sites that were changed
    signs: SignCheck | None = None  # of a gradient times a vector, whose sign can be another than that of leaving it out

    def page(self, everything: bool = False) -> Page:
        return draw(self, everything)

    @property
    def strongest(self) -> tuple[SalientToken, ...]:
        """The tokens, those that matter most first, for or against."""
        return tuple(sorted(self.tokens, key=lambda token: -abs(token.value)))

    def numbers(self) -> npt.NDArray[np.float64]:
        return np.array([token.value for token in self.tokens])

    def __repr__(self) -> str:
        return f"Saliency({self.method} of {_metric(self)}: {len(self.tokens)} tokens)"


def draw(view: Saliency, everything: bool = False) -> Page:
    title = f"{view.model}: how much each token matters to {_metric(view)}"
    parts: list[PagePart] = [Heading(title), Paragraph(METHODS[view.method], "dim")]
    if view.changes:
        parts.append(Paragraph(f"under a change of {abbreviate_list(view.changes)}"))
    parts.append(Paragraph(f"the metric: {view.value:.4f}{_path(view)}"))
    shown = view.tokens if everything or len(view.tokens) <= MAX_TOKENS else _first(view, MAX_TOKENS)
    if len(shown) < len(view.tokens):
        parts.append(Paragraph(f"the {len(shown)} strongest of {len(view.tokens):,} tokens (--all)", "dim"))
    if any(token.value < 0 for token in shown):
        parts.append(Paragraph("A token with a minus lowers it.", "dim"))
    if view.signs is not None:
        strongest = f"Of the {pluralize(view.signs.checked, 'strongest token')}, {view.signs.agree}"
        parts.append(Paragraph(f"{strongest} have the sign of leaving the token out, which gradients only estimate.", "dim"))
    for in_source in (True, False):
        tokens = [token for token in shown if token.in_source == in_source]
        if tokens and any(token.in_source for token in view.tokens):
            parts.append(Heading("the source, which the encoder reads" if in_source else "the target so far"))
        if tokens:
            parts.append(_strip(view, tokens))
    return Page(title, tuple(parts))


def _strip(view: Saliency, tokens: list[SalientToken]) -> TokenStrip:
    most = max(abs(token.value) for token in view.tokens) or 1.0
    return TokenStrip(
        tuple(visible(token.text) for token in tokens),
        tuple(token.value / most for token in tokens),
        tuple(f"{token.value:.4f}" if view.method == "gradient-norm" else f"{token.value:+.4f}" for token in tokens),
    )


def _first(view: Saliency, count: int) -> tuple[SalientToken, ...]:
    """The strongest, in the order of the text."""
    kept = {(token.in_source, token.position) for token in view.strongest[:count]}
    return tuple(token for token in view.tokens if (token.in_source, token.position) in kept)


def _metric(view: Saliency) -> str:
    if view.token is None:
        return {"loss": "the text's loss"}.get(view.metric, "a function of the logits")
    at = "" if view.position is None else f" at position {view.position}"
    if view.against is not None:
        return f"{visible(view.token.text)}'s lead over {visible(view.against.text)}{at}"
    return f"the {view.metric.replace('-', ' ')} of {visible(view.token.text)}{at}"


def _path(view: Saliency) -> str:
    if view.path is None:
        return ""
    path = view.path
    difference = view.value - path.baseline_value
    share = f" ({abs(path.error / difference):.1%})" if difference else ""
    return (
        f"; {path.baseline_value:.4f} at the baseline, {BASELINES[path.baseline]}\n"
        f"the tokens' values sum to {difference + path.error:.4f}, which should be the difference, {difference:.4f}: "
        f"off by {path.error:+.4f}{share} in {path.steps} steps"
        + (UNRELIABLE if abs(path.error) > RELIABLE_SHARE * abs(difference) else "")
    )
