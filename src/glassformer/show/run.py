"""A whole run as one page: what was said, how surprising each token was, why it was chosen, and what went on inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glassformer.show import attention as looks
from glassformer.show import attribution, journey, lens, receipt, why
from glassformer.show import trace as tracing
from glassformer.show.page import Fold, Heading, Page, Part, Passage, Strip, Words
from glassformer.show.words import many, seconds, tame, visible

if TYPE_CHECKING:
    from glassformer.running import Run

FEW = 24  # tokens that are explained one by one unless everything is wanted
MAPPED = 64  # tokens of a text whose map of attention is drawn


def page(run: Run, everything: bool = False) -> Page:
    kept = bool(run.steps) and run.steps[0].waterfall is not None
    parts: list[Part] = [
        Words(tame(run.text), "strong"),
        Words(_how(run), "dim"),
        *([Words(run.remedy)] if run.remedy else []),
    ]
    if kept:
        shown = len(run.steps) if everything else min(FEW, len(run.steps))
        parts += [Heading("each token, as strong as it surprised; follow one to see why"), _strip(run, shown)]
        parts += [
            Fold("the trace: what was expected at each place", tracing.page(run.trace, everything).parts, open=True),
            Fold(
                "why each token",
                tuple(
                    Fold(why.sentence(one), why.page(one, everything).parts[1:], name=f"token-{one.number}")
                    for one in (run.why(number) for number in range(shown))
                ),
            ),
        ]
    parts.append(Fold("the prompt, as the model saw it", (Passage(tame(run.prompt)),)))
    if run.steps:
        parts += _inside(run, everything)
    parts.append(Fold("the journey of the prompt to the first token", journey.page(run.journey, everything).parts))
    parts.append(Fold("the receipt", receipt.page(run.receipt, everything).parts))
    return Page(f"{run.model.name}: {run.text.strip()[:60] or 'a run'}", tuple(parts))


def _how(run: Run) -> str:
    speed = f" · {run.tokens_per_second:.1f} tokens/s" if run.tokens_per_second else ""
    seed = "" if run.seed is None else f" · seed {run.seed}"
    tokens = f"{len(run.ids):,} → {many(len(run.steps), 'token')}"
    return (
        f"{run.model.name} · {run.settings.strategy}{seed} · {tokens} · first after {seconds(run.seconds_to_first)}{speed}"
    )


def _strip(run: Run, shown: int) -> Strip:
    strip = tracing.strip(run.trace)
    links = tuple(f"token-{number}" if number < shown else "" for number in range(len(strip.tokens)))
    return Strip(strip.tokens, strip.values, strip.notes, links)


def _inside(run: Run, everything: bool) -> list[Part]:
    """What went on inside: the lens, who wrote the first token, and who looked at whom."""
    first = run.attribution(0)
    parts: list[Part] = [
        Fold("the lens: what each layer would have said", lens.page(run.lens(), False).parts),
        Fold(f"who wrote {visible(first.text)}, the first token", attribution.page(first, everything).parts),
        Fold("attention: all heads", looks.heads(run.heads(), False).parts),
    ]
    if len(run.reading) <= MAPPED:
        parts.append(Fold("attention: the mean of all layers", looks.page(run.attention(), everything).parts))
    return parts
