"""A whole run as one page: its text, each token's surprisal, why it was chosen, and what happened inside the model."""

from __future__ import annotations

from dataclasses import dataclass

from glassformer.page.document import Collapsible, Heading, Page, PagePart, Paragraph, Preformatted, TokenStrip
from glassformer.page.format import format_seconds, pluralize, reveal, visible
from glassformer.see import trace, why
from glassformer.see.attention import AttentionMap, Heads
from glassformer.see.attribution import Attribution
from glassformer.see.journey.view import Journey
from glassformer.see.lens import Lens
from glassformer.see.receipt import Receipt
from glassformer.see.trace import Trace
from glassformer.see.why import Why

MAX_EXPLAINED = 24  # tokens that are explained one by one, unless everything is shown
MAX_MAP_TOKENS = 64  # of a text whose attention map is drawn


@dataclass(frozen=True)
class Overview:
    """The views of a run that its page shows; None where there is nothing to show."""

    model: str
    prompt: str
    text: str
    strategy: str
    seed: int | None
    tokens: tuple[int, int]  # of the prompt, and generated
    seconds_to_first: float
    tokens_per_second: float
    remedy: str | None
    trace: Trace | None
    whys: tuple[Why, ...]
    lens: Lens | None
    attribution: Attribution | None
    heads: Heads | None
    attention: AttentionMap | None
    journey: Journey
    receipt: Receipt


def draw(run: Overview, everything: bool = False) -> Page:
    parts: list[PagePart] = [
        Paragraph(run.text, "strong"),
        Paragraph(_summary(run), "dim"),
        *([Paragraph(run.remedy)] if run.remedy else []),
    ]
    if run.trace is not None:
        explained = run.whys if everything else run.whys[:MAX_EXPLAINED]
        parts += [
            Heading("each token, shaded by its surprisal (how unexpected it was); follow one to see why it was chosen"),
            _linked_strip(run.trace, len(explained)),
            Collapsible("the trace: what was expected at each position", run.trace.page(everything).body, expanded=True),
            Collapsible(
                "why each token",
                tuple(
                    Collapsible(why.sentence(token), token.page(everything).body, anchor=f"token-{token.number}")
                    for token in explained
                ),
            ),
        ]
    parts.append(Collapsible("the prompt, as the model saw it", (Preformatted(reveal(run.prompt)),)))
    if run.lens is not None:
        parts.append(Collapsible("the lens: what each layer would predict", run.lens.page().body))
    if run.attribution is not None:
        title = f"logit attribution: which parts wrote {visible(run.attribution.text)}, the first token"
        parts.append(Collapsible(title, run.attribution.page(everything).body))
    if run.heads is not None:
        parts.append(Collapsible("attention: all heads", run.heads.page().body))
    if run.attention is not None:
        parts.append(Collapsible("attention: the mean of all layers", run.attention.page(everything).body))
    parts.append(Collapsible("the journey of the prompt to the first token", run.journey.page(everything).body))
    parts.append(Collapsible("the receipt", run.receipt.page(everything).body))
    return Page(f"A run of {run.model}", tuple(parts))


def _summary(run: Overview) -> str:
    prompt, generated = run.tokens
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    seed = "" if run.seed is None else f" · seed {run.seed}"
    tokens = f"{prompt:,} → {pluralize(generated, 'token')}"
    return f"{run.model} · {run.strategy}{seed} · {tokens} · first after {format_seconds(run.seconds_to_first)}{speed}"


def _linked_strip(view: Trace, count: int) -> TokenStrip:
    strip = trace.strip(view)
    links = tuple(f"token-{index}" if index < count else "" for index in range(len(strip.tokens)))
    return TokenStrip(strip.tokens, strip.values, strip.notes, links)
