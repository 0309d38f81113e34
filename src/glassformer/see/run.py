"""A whole run as one page: its text, each token's surprisal, why it was chosen, and what happened inside the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from glassformer.ground.errors import SiteError
from glassformer.ground.operations import operation
from glassformer.page.document import Collapsible, Heading, Page, PagePart, Paragraph, Preformatted, TokenStrip
from glassformer.page.format import format_seconds, pluralize, reveal, visible
from glassformer.see import trace, why
from glassformer.see.activations import Activations
from glassformer.see.attention import attention, heads
from glassformer.see.attribution import attribution_of_run
from glassformer.see.journey.compute import journey_of_run
from glassformer.see.lens import lens_of_run
from glassformer.see.protocols import RunLike
from glassformer.see.receipt import receipt
from glassformer.see.trace import Trace

MAX_EXPLAINED = 24  # tokens that are explained one by one, unless everything is shown
MAX_MAP_TOKENS = 64  # of a text whose attention map is drawn


@operation()
def page(run: RunLike, everything: bool = False) -> Page:
    """The whole run as one picture."""
    reading, watched = Activations.of_run(run), bool(run.steps) and run.steps[0].waterfall is not None
    parts: list[PagePart] = [
        Paragraph(run.text, "strong"),
        Paragraph(_summary(run), "dim"),
        *([Paragraph(run.remedy)] if run.remedy else []),
    ]
    if watched:
        traced, reasons = trace.trace_run(run), why.whys(run).whys
        explained = reasons if everything else reasons[:MAX_EXPLAINED]
        parts += [
            Heading("each token, shaded by its surprisal (how unexpected it was); follow one to see why it was chosen"),
            _linked_strip(traced, len(explained)),
            Collapsible("the trace: what was expected at each position", traced.page(everything).body, expanded=True),
            Collapsible(
                "why each token",
                tuple(
                    Collapsible(why.sentence(token), token.page(everything).body, anchor=f"token-{token.number}")
                    for token in explained
                ),
            ),
        ]
    parts.append(Collapsible("the prompt, as the model saw it", (Preformatted(reveal(run.prompt)),)))
    if run.steps:
        parts += _inside_parts(run, reading, everything)
    parts.append(Collapsible("the journey of the prompt to the first token", journey_of_run(run).page(everything).body))
    parts.append(Collapsible("the receipt", receipt(run).page(everything).body))
    return Page(f"A run of {run.model.name}", tuple(parts))


def _inside_parts(run: RunLike, reading: Activations, everything: bool) -> Iterator[Collapsible]:
    """The lens, attribution and attention, as far as the model's sites and equations are known."""
    with suppress(SiteError):
        yield Collapsible("the lens: what each layer would predict", lens_of_run(run).page().body)
    with suppress(SiteError):
        attributed = attribution_of_run(run)
        title = f"logit attribution: which parts wrote {visible(attributed.text)}, the first token"
        yield Collapsible(title, attributed.page(everything).body)
    with suppress(SiteError):
        yield Collapsible("attention: all heads", heads(reading).page().body)
        if len(reading) <= MAX_MAP_TOKENS:
            yield Collapsible("attention: the mean of all layers", attention(reading).page(everything).body)


def _summary(run: RunLike) -> str:
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    seed = "" if run.seed is None else f" · seed {run.seed}"
    tokens = f"{len(run.prompt_ids):,} → {pluralize(len(run.steps), 'token')}"
    strategy, first = run.settings.strategy, format_seconds(run.seconds_to_first)
    return f"{run.model.name} · {strategy}{seed} · {tokens} · first after {first}{speed}"


def _linked_strip(view: Trace, count: int) -> TokenStrip:
    strip = trace.strip(view)
    links = tuple(f"token-{index}" if index < count else "" for index in range(len(strip.tokens)))
    return TokenStrip(strip.tokens, strip.values, strip.notes, links)
