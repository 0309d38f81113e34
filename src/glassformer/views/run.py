"""A whole run as one page: what was said, how surprising each token was, why it was chosen, and what went on inside."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Fold, Heading, Page, Part, Passage, Strip, Words
from glassformer.page.format import many, seconds, tame, visible
from glassformer.views import trace, why
from glassformer.views.attention import Attention, Heads
from glassformer.views.attribution import Attribution
from glassformer.views.journey import Journey
from glassformer.views.lens import Lens
from glassformer.views.receipt import Receipt
from glassformer.views.trace import Trace
from glassformer.views.why import Why

FEW = 24  # tokens that are explained one by one unless everything is wanted
MAPPED = 64  # tokens of a text whose map of attention is drawn


@dataclass(frozen=True)
class Overview:
    """Every view of a run that its page shows; None where there is nothing to show."""

    model: str
    prompt: str
    text: str
    strategy: str
    seed: int | None
    tokens: tuple[int, int]  # in the prompt, and written
    seconds_to_first: float
    tokens_per_second: float
    remedy: str | None
    trace: Trace | None
    whys: tuple[Why, ...]
    lens: Lens | None
    attribution: Attribution | None
    heads: Heads | None
    attention: Attention | None
    journey: Journey
    receipt: Receipt


def draw(run: Overview, everything: bool = False) -> Page:
    parts: list[Part] = [
        Words(tame(run.text), "strong"),
        Words(_summary(run), "dim"),
        *([Words(run.remedy)] if run.remedy else []),
    ]
    if run.trace is not None:
        explained = run.whys if everything else run.whys[:FEW]
        parts += [
            Heading("each token, shaded by its surprisal; follow one to see why it was chosen"),
            _strip(run.trace, len(explained)),
            Fold("the trace: what was expected at each place", run.trace.page(everything).parts, open=True),
            Fold(
                "why each token",
                tuple(
                    Fold(why.sentence(one), one.page(everything).parts[1:], name=f"token-{one.number}") for one in explained
                ),
            ),
        ]
    parts.append(Fold("the prompt, as the model saw it", (Passage(tame(run.prompt)),)))
    if run.lens is not None:
        parts.append(Fold("the lens: what each layer would have said", run.lens.page().parts))
    if run.attribution is not None:
        title = f"attribution: which parts wrote {visible(run.attribution.text)}, the first token"
        parts.append(Fold(title, run.attribution.page(everything).parts))
    if run.heads is not None:
        parts.append(Fold("attention: all heads", run.heads.page().parts))
    if run.attention is not None:
        parts.append(Fold("attention: the mean of all layers", run.attention.page(everything).parts))
    parts.append(Fold("the journey of the prompt to the first token", run.journey.page(everything).parts))
    parts.append(Fold("the receipt", run.receipt.page(everything).parts))
    return Page(f"{run.model}: {run.text.strip()[:60] or 'a run'}", tuple(parts))


def _summary(run: Overview) -> str:
    given, written = run.tokens
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    seed = "" if run.seed is None else f" · seed {run.seed}"
    tokens = f"{given:,} → {many(written, 'token')}"
    return f"{run.model} · {run.strategy}{seed} · {tokens} · first after {seconds(run.seconds_to_first)}{speed}"


def _strip(traced: Trace, linked: int) -> Strip:
    strip = trace.strip(traced)
    links = tuple(f"token-{number}" if number < linked else "" for number in range(len(strip.tokens)))
    return Strip(strip.tokens, strip.values, strip.notes, links)
