"""How each clause of an explanation was measured, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

from glassformer.see.explain.explanation import Carried, Evidence, WordEffect, spoken
from glassformer.see.explain.parts import ENOUGH
from glassformer.see.explain.question import Question
from glassformer.see.patching.view import AnswerToken


def evidence_for(
    question: Question, answer: AnswerToken, rival: AnswerToken, words: Sequence[WordEffect], carried: Carried | None
) -> tuple[Evidence, ...]:
    """How each clause of the answer was measured, and how sure it is."""
    pair = f"{spoken(answer.text)} over {spoken(rival.text)}"
    found = [Evidence(pair, f"{question.whole:+.1f}", "the difference of their logits after the text", "exact: one pass")]
    for word in words:
        changes = [one.change for one in word.exchanges]
        said = ", ".join(f"{one.text} → {spoken(one.answer)}" for one in word.exchanges)
        if changes:
            spread = f"{sum(one.outcome != 'unchanged' for one in word.exchanges)} of {len(changes)} make for another answer"
            how, sure = f"exchanged in all its places ({said})", f"{min(changes):+.1f} to {max(changes):+.1f}; {spread}"
        else:
            how, sure = "left out of all its places", "one way of taking it away"
        found.append(Evidence(f"“{word.text}”", f"{-word.worth:+.1f}", how, sure))
    if carried is not None:
        for part in carried.parts:
            how = f"its value at {carried.to}, put into the pass of the text with “{carried.instead}”"
            sure = f"with those above {part.together:.0%}"
            found.append(Evidence(part.name, f"{part.restored:.0%}", how, sure))
        if carried.settled is not None:
            lens = "" if carried.lens is None else f"the lens reads it from block {carried.lens} on"
            how = f"the stream at {carried.to}, put in as it leaves each block"
            found.append(Evidence(f"from block {carried.settled} on", f"≥ {ENOUGH:.0%}", how, lens))
    return tuple(found)
