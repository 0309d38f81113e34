"""How often `why` names the word that decides, how much of the lead its parts restore elsewhere, and how long it takes.

Each fact's subject is exchanged for the next one's: an independent counterfactual, which `why` does not know. The words
that it names should have the subject among them, and the parts that it found with a word of its own should restore the lead
in this pair too.

    python bench/why.py [MODEL]
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import replace

import glassformer
from glassformer.see.explain.compute import PartSearch, ask, explain
from glassformer.see.explain.words import words_of
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


def main() -> None:
    model = glassformer.load(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
    named, restored, seconds, checks = [], [], [], []
    for template, subjects in FACTS.items():
        for subject, other in zip(subjects, (*subjects[1:], subjects[0]), strict=True):
            first, second = (model.read(template.format(name), raw=True) for name in (subject, other))
            start = time.perf_counter()
            view = explain(first)
            seconds.append(time.perf_counter() - start)
            named.append(bool(view.named) and subject in [word.text for word in view.words[: view.named]])
            checks += [check.holds for check in view.checks]
            if view.carried is None or not view.carried.parts or view.carried.word != subject:
                continue
            question, _ = ask(first, -1, view.answer.id, None)
            question = replace(question, against=int(ask(second, -1, None, None)[0].token))
            if question.against == question.token or not words_of(second, len(second)):
                continue
            sites = [
                f"blocks.{b}.{part}" for b in range(model.blueprint.blocks) for part in ("attention.heads", "mlp.update")
            ]
            with read_pairs([TextPair(first, second, -1, aligned=True)], sites) as (read,):
                search = PartSearch(question, read)
                restored.append(search.restored(search.lead_with([(part.block, part.head) for part in view.carried.parts])))
            print(f"{subject:10} {named[-1]!s:5} {restored[-1]:.2f}  {' '.join(view.sentences)}", flush=True)
    share = sum(value >= 0.8 for value in restored) / len(restored)
    print(
        f"{len(named)} facts: the subject is named in {sum(named) / len(named):.0%}; {statistics.median(seconds):.2f} s each"
    )
    print(
        f"its parts restore a median of {statistics.median(restored):.0%} of another pair's lead; 80% or more in {share:.0%}"
    )
    print(f"{sum(checks) / len(checks):.0%} of {len(checks)} checks hold")


if __name__ == "__main__":
    main()
