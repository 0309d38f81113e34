"""How often `why` names the word that decides, how much of the lead its parts restore elsewhere, and how long it takes.

Each fact's subject is exchanged for the next one's: an independent counterfactual, which `why` does not know. Where the
model answers both alike there is no fact, and so nothing to explain. Among the words that it names should be the subject,
and the parts that it found with a word of its own should restore the lead in this pair too.

    python bench/why.py [MODEL] [--every N] [--show]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import glassformer
from glassformer.see.explain.operations import explain
from glassformer.see.explain.parts import Part, PartSearch
from glassformer.see.explain.question import Lead, ask
from glassformer.see.explain.texts import read_text
from glassformer.see.patching.pair import TextPair, read_pairs

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo", "China": "Beijing",
    "Egypt": "Cairo", "Greece": "Athens", "Russia": "Moscow", "Poland": "Warsaw", "Austria": "Vienna", "Portugal": "Lisbon",
    "Cuba": "Havana", "Kenya": "Nairobi", "Norway": "Oslo", "Sweden": "Stockholm", "Ireland": "Dublin", "Iran": "Tehran",
    "Peru": "Lima", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Hungary": "Budapest", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Turkey": "Ankara",
}  # fmt: skip
COUNTRIES, CITIES = tuple(CAPITALS), tuple(CAPITALS.values())
FACTS = {
    "The capital of {} is": COUNTRIES,
    "The capital city of {} is called": COUNTRIES,
    "{} is a city in the country of": CITIES,
    "The people of {} speak a language called": COUNTRIES,
}
QUESTION = "What is the capital of France?"  # with its template and answer about 40 tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--every", type=int, default=1, help="Take every N-th fact.")
    parser.add_argument("--show", action="store_true", help="Print each explanation.")
    options = parser.parse_args()
    model = glassformer.load(options.model)
    pairs = [
        [template.format(name) for name in (subject, other)] + [subject]
        for template, subjects in FACTS.items()
        for subject, other in zip(subjects, (*subjects[1:], subjects[0]), strict=True)
    ][:: options.every]
    named, known, restored, checks, used = list[bool](), list[bool](), list[float](), list[bool](), list[int]()
    sites = [f"blocks.{b}.{part}" for b in range(model.blueprint.blocks) for part in ("attention.heads", "mlp.update")]
    for text, other_text, subject in pairs:
        first, second = (model.read(one, raw=True) for one in (text, other_text))
        view = explain(first)
        with read_text(second, len(second), len(second) - 1) as read_second:
            rival = int(read_second.logits(len(second) - 1).argmax())
        known.append(rival != view.answer.id)
        named.append(subject in [word.text for word in view.words[: view.named]])
        checks += [check.holds for check in view.checks]
        if options.show:
            print(f"{subject:10} {'known' if known[-1] else '':6} {named[-1]!s:5}  {' '.join(view.sentences)}", flush=True)
        if view.carried is None or not view.carried.parts or view.carried.word != subject or not known[-1]:
            continue
        with read_text(first, len(first), len(first) - 1) as read_first:
            question = replace(
                ask(read_first, len(first) - 1, view.answer.id, None), lead=Lead(view.answer.id, rival, alone=True)
            )
            with read_pairs([TextPair(first, second, -1, aligned=True)], sites) as (pair,):
                search = PartSearch(question, pair)
                parts = [Part(part.block, part.head) for part in view.carried.parts]
                restored.append(search.restored(search.lead_with(parts)))
        used.append(len(parts))
        if options.show:
            print(f"{'':10} {restored[-1]:.2f} with {used[-1]} parts", flush=True)
    facts = [name for name, fact in zip(named, known, strict=True) if fact]
    share = sum(value >= 0.8 for value in restored) / len(restored)
    print(f"{len(named)} prompts: the subject is named in {sum(named) / len(named):.1%}")
    print(f"{len(facts)} of them answered otherwise for another subject: it is named in {sum(facts) / len(facts):.1%}")
    print(
        f"{len(restored)} pairs: the parts ({statistics.median(used):.0f} in the median, {max(used)} at the most) restore a "
        f"median of {statistics.median(restored):.0%} of another pair's lead; 80% or more in {share:.0%}"
    )
    print(f"{sum(checks) / len(checks):.0%} of {len(checks)} checks hold")
    for quick in (False, True):
        walls, processors = [], []
        for _ in range(6):
            start, begun = time.perf_counter(), time.process_time()
            view = model.explain(QUESTION, quick=quick)
            walls.append(time.perf_counter() - start)
            processors.append(time.process_time() - begun)
        print(
            f"{'quick: ' if quick else ''}{statistics.median(walls[1:]):.2f} s for {len(view.tokens)} tokens, "
            f"{statistics.median(processors[1:]):.2f} s of processor time"
        )


if __name__ == "__main__":
    main()
