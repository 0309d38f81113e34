"""Saliency: how much each token of a text matters to one number of the model's output.

By default each token is left out in turn (`leave_one_out`): what that takes off the number is what the token adds. A word
that another one repeats then seems to be worth nothing; Shapley values (`shapley`) are what it adds on average to any part
of the text. Gradients at the tokens' vectors need no pass for each token, and only estimate what leaving it out does: often
enough the sign is another. So the rank correlation with leaving out stands beside them, and of how many of the strongest
tokens the sign is the same.

`input-x-gradient` and `gradient-norm` need one backward pass. Integrated gradients (https://arxiv.org/abs/1703.01365) go
from a baseline to the text in a straight line; what they give the tokens should sum to the difference of the metric at both
ends. Since that holds for any piece of the line too, the error of each piece is known, and by default the pieces with the
largest are halved, again and again, until all is within a twentieth. The usual baseline is the mean of all tokens' vectors:
from zeros, the first norm of many families makes something of the very first step, and no number of steps sums that up.

Shapes: vectors (rows, length, hidden); values (tokens,), an encoder-decoder's source first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from glassformer.ground.errors import InputError, SettingError, SiteError, spell
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.typecheck import OWN_CHECK
from glassformer.page.document import Heading, Page, PagePart, Paragraph, TokenStrip
from glassformer.page.format import abbreviate_list, pluralize, visible
from glassformer.see.activations import Activations
from glassformer.see.leave_one_out import LeaveOneOut, Place, Unit, UnitKind, token_units
from glassformer.see.metrics import MetricFunction, Target, TargetName, resolve_metric
from glassformer.see.patching.view import AnswerToken
from glassformer.see.shapley import MAX_PAIRS, MIN_PAIRS, Coalition, is_exact, shapley_values
from glassformer.see.view import ArrayView, Floats

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.see.differentiation import Differentiation, Vectors

SaliencyMethod: TypeAlias = Literal["leave-one-out", "shapley", "input-x-gradient", "gradient-norm", "integrated"]
Baseline: TypeAlias = Literal["zero", "pad", "mean"]
LEAVING_OUT = ("leave-one-out", "shapley")  # methods without gradients
SHOWN_TOKENS = 64  # unless everything is shown
METHODS = {
    "leave-one-out": "leave one out: what it loses when a token is left out of the text",
    "shapley": "Shapley values: what it adds on average, whichever of the others are in the text",
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
    """A token, or a word, and how much it matters."""

    position: int  # of a word: that of its first token, and so is the id
    id: int
    text: str
    in_source: bool  # of an encoder-decoder: whether the encoder reads it
    value: float
    positions: tuple[int, ...] = ()  # of all tokens of a word, wherever it stands
    error: float | None = None  # the standard error, where orders were drawn
    interval: tuple[float, float] | None = None  # 95%


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
class Agreement:
    """How near a gradient's values are to leaving tokens out."""

    tokens: int  # that were left out: all, or of a long text as many as can be, evenly spread
    correlation: float | None  # of their ranks (Spearman's); None: there is nothing to rank


@dataclass(frozen=True)
class ShapleySampling:
    """How Shapley values were computed: their sum is the metric less its value without all of them."""

    permutations: int  # orders that were drawn, each with its reverse; 0: exact
    seed: int | None  # None: exact
    texts: int  # that were read
    empty: float  # the metric where all of them are left out


@dataclass(frozen=True)
class Saliency(ArrayView):
    """How much each token of a text matters to one number of the model's output."""

    SCHEMA = "glassformer.saliency/1"

    model: str
    method: SaliencyMethod
    metric: TargetName
    position: int | None  # where its logits are; None: of the whole text
    token: AnswerToken | None  # or label, whose logit or log-probability it is
    against: AnswerToken | None  # that the token leads over
    value: float  # of the metric
    tokens: tuple[SalientToken, ...]  # without those that cannot be left out, where that is the method
    path: PathSum | None  # of integrated gradients
    changes: tuple[str, ...]  # sites that were changed
    signs: SignCheck | None = None  # of a gradient times a vector, whose sign can be another than that of leaving it out
    agreement: Agreement | None = None  # of gradients
    by: UnitKind = "tokens"
    sampling: ShapleySampling | None = None  # of Shapley values

    def page(self, everything: bool = False) -> Page:
        title = f"{self.model}: how much each {self.by.removesuffix('s')} matters to {_metric(self)}"
        parts: list[PagePart] = [Paragraph(METHODS[self.method], "dim")]
        if self.changes:
            parts.append(Paragraph(f"under a change of {abbreviate_list(self.changes)}"))
        parts.append(Paragraph(f"the metric: {self.value:.4f}{_path(self)}{_sampling(self)}"))
        shown = self.tokens if everything or len(self.tokens) <= SHOWN_TOKENS else _first(self, SHOWN_TOKENS)
        if len(shown) < len(self.tokens):
            parts.append(Paragraph(f"the {len(shown)} strongest of {len(self.tokens):,} {self.by} (--all)", "dim"))
        if any(token.value < 0 for token in shown):
            parts.append(Paragraph(f"A {self.by.removesuffix('s')} with a minus lowers it.", "dim"))
        if self.agreement is not None:
            parts.append(Paragraph(_agreement(self), "dim"))
        if self.signs is not None:
            strongest = f"Of the {pluralize(self.signs.checked, 'strongest token')}, {self.signs.agree}"
            parts.append(
                Paragraph(f"{strongest} have the sign of leaving the token out, which gradients only estimate.", "dim")
            )
        for in_source in (True, False):
            tokens = [token for token in shown if token.in_source == in_source]
            if tokens and any(token.in_source for token in self.tokens):
                parts.append(Heading("the source, which the encoder reads" if in_source else "the target so far"))
            if tokens:
                parts.append(_strip(self, tokens))
        return Page.titled(title, *parts)

    @property
    def strongest(self) -> tuple[SalientToken, ...]:
        """The tokens, those that matter most first, for or against."""
        return tuple(sorted(self.tokens, key=lambda token: -abs(token.value)))

    def numbers(self) -> npt.NDArray[np.float64]:
        return np.array([token.value for token in self.tokens])

    def __repr__(self) -> str:
        return f"Saliency({self.method} of {_metric(self)}: {len(self.tokens)} tokens)"


def _strip(view: Saliency, tokens: list[SalientToken]) -> TokenStrip:
    most = max(abs(token.value) for token in view.tokens) or 1.0
    return TokenStrip(
        tuple(visible(token.text) for token in tokens),
        tuple(token.value / most for token in tokens),
        tuple(_note(view, token) for token in tokens),
    )


def _note(view: Saliency, token: SalientToken) -> str:
    value = f"{token.value:.4f}" if view.method == "gradient-norm" else f"{token.value:+.4f}"
    return value if token.interval is None else f"{value} ±{(token.interval[1] - token.interval[0]) / 2:.4f}"


def _first(view: Saliency, count: int) -> tuple[SalientToken, ...]:
    """The strongest, in the order of the text."""
    kept = {(token.in_source, token.position) for token in view.strongest[:count]}
    return tuple(token for token in view.tokens if (token.in_source, token.position) in kept)


def _metric(view: Saliency) -> str:
    if view.token is None:
        return {"loss": "the text's loss"}.get(view.metric, "a function of the logits")
    where = "" if view.position is None else f" at position {view.position}"
    if view.against is not None:
        return f"{visible(view.token.text)}'s lead over {visible(view.against.text)}{where}"
    return f"the {view.metric.replace('-', ' ')} of {visible(view.token.text)}{where}"


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


def _sampling(view: Saliency) -> str:
    if view.sampling is None:
        return ""
    how = view.sampling
    what = f"; {how.empty:.4f} where all of these {view.by} are left out\nthe {view.by}' values sum to the difference"
    if not how.permutations:
        return f"{what}; they are exact, from {how.texts:,} texts"
    return (
        f"{what}; {how.permutations} orders were drawn with the seed {how.seed} ({how.texts:,} texts), and ± is half of a "
        "95% interval"
    )


def _agreement(view: Saliency) -> str:
    assert view.agreement is not None
    correlation = view.agreement.correlation
    among = "" if view.agreement.tokens == len(view.tokens) else f", over {pluralize(view.agreement.tokens, 'token')}"
    if correlation is None:
        return f"There is no rank correlation with leaving tokens out, since nothing differs{among}."
    what = "what leaving the token out changes" if view.method == "gradient-norm" else "leaving the token out"
    return f"The rank correlation with {what} is {correlation:+.2f} on this text{among}."


Numbers = npt.NDArray[np.float64]
TOLERANCE = 0.05  # of the difference that integrated gradients explain
NODES = 3  # of a piece of the path, at which gradients are taken
MAX_STEPS = 256
MAX_TOKENS = 500_000  # that all steps together read
TABLE_ROWS = 4096  # of the embedding, of which a mean is taken at once
CHECKED_SIGNS = 8  # of the strongest tokens
COMPARED_TOKENS = 8192  # that are read to compare gradients with leaving tokens out
MIN_DRAWN = 2  # pairs of orders, of which a spread can be seen
BATCH_TOKENS = 1024  # of the steps that go through in one pass


@operation(
    route="saliency",
    example='glass saliency --raw "The capital of France is"   ·   '
    'glass saliency "What is the capital of France?" --method shapley --by words   ·   '
    'glass saliency --raw "The capital of France is" --of " Paris" --against " Rome" --method integrated',
)
def saliency(
    reading: Activations,
    token: Annotated[
        int | str | None,
        about(
            "The token or label it is about, by text or #id; by default the best.", "--of", metavar="TEXT", served_minimum=0
        ),
    ] = None,
    against: Annotated[
        int | str | None, about("Its lead over this one; by default the runner-up.", metavar="TEXT", served_minimum=0)
    ] = None,
    position: Annotated[
        int | str | None, about("After this token, or in this gap: its position or its text.", "--token", "-t")
    ] = None,
    *,
    metric: Annotated[
        TargetName | MetricFunction,
        OWN_CHECK,
        about(
            "lead, logit, log-probability, or loss: that of the whole text.",
            served=Literal["lead", "logit", "log-probability", "loss"],
        ),
    ] = "lead",
    method: Annotated[
        SaliencyMethod, about("leave-one-out, shapley; by gradients input-x-gradient, gradient-norm, or integrated.")
    ] = "leave-one-out",
    by: Annotated[UnitKind, about("Whether tokens or words are left out, each word with all of its places.")] = "tokens",
    baseline: Annotated[
        Baseline | None, about("Of integrated gradients: mean (the default), pad or zero.", default_shown=False)
    ] = None,
    steps: Annotated[
        int | None,
        about("Of integrated gradients; by default as many as are needed.", minimum=1, served_maximum=64),
    ] = None,
    permutations: Annotated[
        int | None,
        about(
            "Of Shapley values: how many orders are drawn, an even number; by default as many as are needed.",
            minimum=4,
            served_minimum=4,
            served_maximum=64,
        ),
    ] = None,
    seed: Annotated[int, about("Of Shapley values: of the orders.", minimum=0, served_minimum=0)] = 0,
    progress: Progress | None = None,
) -> Saliency:
    """Show how much each token of a text matters to the next one, to a label or to the loss.

    It is what that number loses without the token. `metric` may also be a function of the logits that returns a tensor.
    """
    _check_settings(method, by, baseline, steps, permutations, seed)
    if method == "shapley" and metric == "loss":
        raise SettingError(
            "a loss needs two tokens, which not every part of a text has, so it has no Shapley values. Take "
            f"{spell('metric', 'log-probability')}, or {spell('method', 'leave-one-out')}."
        )
    _check_steps(steps, len(reading) + len(reading.source or ()))
    resolved = resolve_metric(reading, metric, token, against, position)
    whole = partial(Saliency, reading.model.name, method, resolved.name, resolved.position, resolved.token, resolved.against)
    changes = tuple(reading.model.changes)
    if method in LEAVING_OUT:
        left_out = LeaveOneOut(reading, resolved.target)
        if method == "shapley":
            tokens, sampling = _shapley(left_out, by, permutations, seed, progress)
            return whole(left_out.value, tokens, None, changes, by=by, sampling=sampling)
        units = left_out.units(by)
        if (cost := left_out.cost([unit.places for unit in units])) > MAX_TOKENS:
            raise InputError(
                f"to leave each of {len(units):,} {by} out, {cost:,} tokens are read in all; {MAX_TOKENS:,} is the most. "
                f"Take a part of the text, or {spell('method', 'input-x-gradient')}."
            )
        losses = left_out.losses([unit.places for unit in units], progress)
        _check_finite(np.array(losses), left_out.dtype)
        return whole(left_out.value, _tokens(reading, units, losses), None, changes, by=by)
    from glassformer.see.differentiation import Differentiation

    text = Differentiation(reading)
    vectors, path = text.vectors(), None
    if method == "integrated":
        line = BaselinePath(text, resolved.target, _baseline(text, baseline or "mean", vectors), vectors)
        total = line.quadrature(steps) if steps is not None else line.adaptive(progress)
        value, values = total.last, total.integral
        path = PathSum(baseline or "mean", total.first, line.steps, total.error)
    else:
        metrics, gradients = text.gradients(resolved.target, vectors)
        value = float(metrics[0])
        if method == "gradient-norm":
            values = _joined([gradient.double().norm(dim=-1) for gradient in gradients])[0]
        else:
            values = _joined(_products(vectors, gradients))[0]
    _check_finite(values, str(text.module.dtype).removeprefix("torch."))
    tokens = _tokens(reading, token_units(reading, _places(reading)), values.tolist())
    return whole(value, tokens, path, changes, *_compare(reading, resolved.target, method, tokens))


@operation()
def gradients(
    reading: Activations,
    *patterns: str,
    token: int | str | None = None,
    against: int | str | None = None,
    position: int | str | None = None,
    metric: Annotated[TargetName | MetricFunction, OWN_CHECK] = "lead",
) -> dict[str, Floats]:
    """The gradient of a metric at any number of sites, by names or patterns, all in one pass there and back.

    Each has the shape of `values(…)` there; the metric is chosen as for `saliency`.
    """
    from glassformer.see.differentiation import Differentiation

    sites = reading.sites(*patterns)
    if not sites:
        raise InputError("name the sites whose gradients are wanted, such as 'blocks.*.residual'.")
    target = resolve_metric(reading, metric, token, against, position).target
    return Differentiation(reading).site_gradients(target, sites)


def _places(reading: Activations) -> list[Place]:
    """All tokens, an encoder-decoder's source first."""
    return [
        *((True, position) for position in range(len(reading.source or ()))),
        *((False, position) for position in range(len(reading.ids))),
    ]


def _tokens(
    reading: Activations,
    units: Sequence[Unit],
    values: Sequence[float],
    errors: Sequence[float] | None = None,
    half_widths: Sequence[float] | None = None,
) -> tuple[SalientToken, ...]:
    found = []
    for index, (unit, value) in enumerate(zip(units, values, strict=True)):
        in_source, place = unit.places[0]
        token = (reading.source_tokens if in_source else reading.tokens)[place]
        error = interval = None
        if errors is not None and half_widths is not None:
            error, interval = float(errors[index]), (value - half_widths[index], value + half_widths[index])
        positions = tuple(position for _, position in unit.places)
        found.append(SalientToken(place, token.id, unit.text, in_source, float(value), positions, error, interval))
    return tuple(found)


def _shapley(
    left_out: LeaveOneOut, by: UnitKind, permutations: int | None, seed: int, progress: Progress | None
) -> tuple[tuple[SalientToken, ...], ShapleySampling]:
    """The game in which the tokens, or words, join the text that remains without all of them."""
    players = left_out.players(by)
    length = left_out.end + len(left_out.reading.source or ())
    pair = 2 * len(players) * max(1, length - len(players) // 2)  # tokens that a pair of orders reads
    pairs = MAX_PAIRS if permutations is None else permutations // 2
    if not is_exact(len(players), pairs) and pair * (pairs if permutations else MIN_PAIRS) > MAX_TOKENS:
        raise InputError(
            f"each two orders of {len(players):,} {by} read {pair:,} tokens; {MAX_TOKENS:,} in all is the most. Draw fewer, "
            f"take words or a part of the text, or {spell('method', 'leave-one-out')}."
        )

    def worth(coalitions: Sequence[Coalition]) -> list[float]:
        return left_out.values([
            [place for index, unit in enumerate(players) if not coalition >> index & 1 for place in unit.places]
            for coalition in coalitions
        ])  # fmt: skip

    most = pairs if permutations else min(pairs, max(MIN_PAIRS, MAX_TOKENS // pair))
    found = shapley_values(len(players), worth, most, seed, precise=permutations is None, progress=progress)
    _check_finite(found.values, left_out.dtype)
    tokens = _tokens(
        left_out.reading, players, found.values.tolist(),
        None if found.errors is None else found.errors.tolist(),
        None if found.half_widths is None else found.half_widths.tolist(),
    )  # fmt: skip
    drawn = None if found.permutations == 0 else seed
    return tokens, ShapleySampling(found.permutations, drawn, found.coalitions, found.empty)


def _compare(
    reading: Activations, target: Target, method: SaliencyMethod, tokens: Sequence[SalientToken]
) -> tuple[SignCheck | None, Agreement | None]:
    """A gradient's values beside leaving the tokens out, as far as they can be: of a long text, evenly spread ones.

    A change that fits this text alone, such as a function that adds to each position, leaves nothing to compare.
    """
    try:
        return _compared(LeaveOneOut(reading, target), method, tokens)
    except SiteError:
        return None, None


def _compared(
    left_out: LeaveOneOut, method: SaliencyMethod, tokens: Sequence[SalientToken]
) -> tuple[SignCheck | None, Agreement | None]:
    values = {(token.in_source, token.position): token.value for token in tokens}
    if not (places := left_out.places(allow_none=True)):
        return None, None
    signed = method != "gradient-norm"
    strongest = sorted(places, key=lambda place: -abs(values[place]))[: CHECKED_SIGNS if signed else 0]
    spread = places[:: -(-left_out.cost([[place] for place in places]) // COMPARED_TOKENS)]
    read = list(dict.fromkeys([*strongest, *spread]))
    losses = dict(zip(read, left_out.losses([[place] for place in read]), strict=True))
    correlation = spearman(
        [values[place] for place in spread], [losses[place] if signed else abs(losses[place]) for place in spread]
    )
    agree = sum(values[place] * losses[place] > 0 for place in strongest)
    return SignCheck(len(strongest), agree) if signed else None, Agreement(len(spread), correlation)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """The correlation of two lists' ranks; None where one of them has no order."""
    ranks = [_ranks(np.asarray(values)) for values in (first, second)]
    if any(rank.size < 2 or rank.std() == 0 for rank in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Numbers) -> Numbers:
    """What is equal shares its mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Numbers = (counts.cumsum() - (counts - 1) / 2)[inverse]
    return ranks


def _check_settings(
    method: SaliencyMethod, by: UnitKind, baseline: Baseline | None, steps: int | None, permutations: int | None, seed: int
) -> None:
    if method != "integrated" and (baseline is not None or steps is not None):
        raise SettingError(
            f"baseline and steps are for integrated gradients. Leave them out, or take {spell('method', 'integrated')}."
        )
    if method != "shapley" and (permutations is not None or seed):
        raise SettingError(
            f"permutations and seed are for Shapley values. Leave them out, or take {spell('method', 'shapley')}."
        )
    if permutations is not None and (permutations < 2 * MIN_DRAWN or permutations % 2):
        raise SettingError(f"permutations is {permutations}; it must be an even number from {2 * MIN_DRAWN} on.")
    if seed < 0:
        raise SettingError(f"seed is {seed}; it must be 0 or more.")
    if by == "words" and method not in LEAVING_OUT:
        raise SettingError(
            f"gradients are those of tokens, not of words. Take {spell('method', 'leave-one-out')} or "
            f"{spell('method', 'shapley')}."
        )


def _check_finite(values: Numbers, dtype: str) -> None:
    if not np.isfinite(values).all():
        raise InputError(f"the values are not finite in {dtype}. Load the model with {spell('dtype', 'float32')}.")


def _check_steps(steps: int | None, length: int) -> None:
    if steps is not None and not 1 <= steps <= MAX_STEPS:
        raise SettingError(f"steps is {steps}; it must be from 1 to {MAX_STEPS}.")
    if (steps or 1) * length > MAX_TOKENS:
        raise InputError(
            f"{steps or 1} steps over {length:,} tokens read more than {MAX_TOKENS:,} in all. Take fewer steps, or a part "
            "of the text."
        )


def _baseline(text: Differentiation, kind: Baseline, vectors: Vectors) -> Vectors:
    """What stands for a text that says nothing, of the shape of its vectors."""
    import torch

    if kind == "zero":
        return tuple(torch.zeros_like(stack) for stack in vectors)
    tokenizer = text.model.tokenizer
    if kind == "pad" and tokenizer.pad_token_id is None:
        raise InputError(f"{text.model.name} has no padding token. Take the baseline 'zero' or 'mean'.")
    numbers = [tokenizer.pad_token_id] if kind == "pad" else range(text.module.base_model.vocabulary_size)
    ids = torch.tensor(numbers, device=text.module.device)[None]
    with torch.no_grad():
        parts = [ids[:, start : start + TABLE_ROWS] for start in range(0, ids.shape[1], TABLE_ROWS)]
        means = [
            torch.stack([embed(part, None).double().sum(1) for part in parts]).sum(0) / ids.shape[1]
            for embed in text.embeddings
        ]
    return tuple(mean.to(stack).expand_as(stack) for mean, stack in zip(means, vectors, strict=True))


@dataclass(frozen=True)
class PathPiece:
    """A piece of the line from a baseline to a text, and what its gradients sum to for each token."""

    start: float
    end: float
    first: float  # the metric at both ends
    last: float
    integral: Numbers

    @property
    def halves(self) -> tuple[tuple[float, float], tuple[float, float]]:
        middle = (self.start + self.end) / 2
        return (self.start, middle), (middle, self.end)

    @property
    def error(self) -> float:
        return float(self.integral.sum() - (self.last - self.first))


class BaselinePath:
    """The straight line from a baseline to a text's vectors."""

    def __init__(self, text: Differentiation, target: Target, baseline: Vectors, vectors: Vectors) -> None:
        self.text, self.target = text, target
        self.baseline = baseline
        self.differences = tuple(end - start for start, end in zip(baseline, vectors, strict=True))
        self.values: dict[float, float] = {}  # the metric at the ends of pieces
        self.steps = 0  # so far, at which gradients were taken

    def quadrature(self, steps: int) -> PathPiece:
        """The whole line, by Gauss and Legendre's rule of `steps` points."""
        return self._pieces([(0.0, 1.0)], steps)[0]

    def adaptive(self, progress: Progress | None = None) -> PathPiece:
        """The line in pieces, of which the worst are halved until the sum of their errors is small."""
        budget = max(NODES, min(MAX_STEPS, MAX_TOKENS // self.text.length))
        pieces = self._pieces([(0.0, 1.0)], NODES)
        allowed = TOLERANCE * abs(self.values[1.0] - self.values[0.0])
        at_once = max(1, BATCH_TOKENS // (2 * NODES * self.text.length))
        while sum(abs(piece.error) for piece in pieces) > allowed and self.steps + 2 * NODES <= budget:
            pieces.sort(key=lambda piece: -abs(piece.error))
            bad = [piece for piece in pieces if abs(piece.error) > allowed / len(pieces)]
            halved = bad[: min(at_once, (budget - self.steps) // (2 * NODES))]
            pieces = pieces[len(halved) :] + self._pieces([half for piece in halved for half in piece.halves], NODES)
            if progress is not None:
                progress(self.steps, budget)
        return PathPiece(0.0, 1.0, self.values[0.0], self.values[1.0], np.sum([piece.integral for piece in pieces], axis=0))

    def _pieces(self, spans: Sequence[tuple[float, float]], nodes: int) -> list[PathPiece]:
        """Pieces of the line, by as many points of each; the metric at their ends goes with them."""
        points, weights = np.polynomial.legendre.leggauss(nodes)
        shares = [start + (end - start) * (point + 1) / 2 for start, end in spans for point in points]
        ends = sorted({end for span in spans for end in span} - self.values.keys())
        values, gradients = self._evaluate([*ends, *shares])
        self.values.update(zip(ends, values, strict=False))
        self.steps += len(shares)
        products = gradients[len(ends) :].reshape(len(spans), nodes, -1)
        return [
            PathPiece(start, end, self.values[start], self.values[end], (end - start) / 2 * weights @ samples)
            for (start, end), samples in zip(spans, products, strict=True)
        ]

    def _evaluate(self, shares: Sequence[float]) -> tuple[list[float], Numbers]:
        """The metric at some points of the line, and what moves it there: (points, tokens)."""
        import torch

        values: list[float] = []
        rows: list[Numbers] = []
        for batch in _batches(shares, max(1, BATCH_TOKENS // self.text.length)):
            share = torch.tensor(batch, dtype=self.differences[0].dtype, device=self.differences[0].device)[:, None, None]
            points = tuple(start + share * way for start, way in zip(self.baseline, self.differences, strict=True))
            metrics, gradients = self.text.gradients(self.target, points)
            values += metrics.double().tolist()
            rows.append(_joined(_products(self.differences, gradients)))
        return values, np.concatenate(rows)


def _batches(shares: Sequence[float], size: int) -> Iterator[Sequence[float]]:
    return (shares[start : start + size] for start in range(0, len(shares), size))


def _products(vectors: Vectors, gradients: Vectors) -> list[Tensor]:
    """Each token's vector times the gradient at it."""
    return [(vector.double() * gradient.double()).sum(-1) for vector, gradient in zip(vectors, gradients, strict=True)]


def _joined(values: Sequence[Tensor]) -> Numbers:
    """(rows, tokens), of all stacks."""
    import torch

    joined: Numbers = torch.cat(list(values), dim=1).cpu().numpy()
    return joined
