"""Why this token: what the model thought of each candidate, what each rule did to it, and what decided."""

from __future__ import annotations

from glassformer.decoding import Step
from glassformer.decoding.waterfall import Waterfall
from glassformer.ground.errors import InputError
from glassformer.text import Tokenizer
from glassformer.text.detokenizer import shown_bytes
from glassformer.views.why import ExplainedCandidate, Why


def why(tokenizer: Tokenizer, step: Step, number: int, beams: int = 1) -> Why:
    """One step for people; it must have a waterfall."""
    fall: Waterfall | None = step.waterfall
    if fall is None:
        raise InputError("this step kept no account of its rules. Get the run with watch(…), or watch_many(…, look=10).")
    candidates = tuple(
        ExplainedCandidate(
            fate.id,
            shown_bytes(tokenizer.token_bytes(fate.id)),
            tuple(None if score == float("-inf") else score for score in fate.scores),
            fate.probability,
            fate.removed_by,
            fate.id == step.id,
        )
        for fate in fall
    )
    text = shown_bytes(tokenizer.token_bytes(step.id))
    finish = step.finish.value if step.finish else None
    account = (fall.stages[1:], fall.counts, fall.entropies)
    return Why(number, text, *account, candidates, step.draw, step.logprob, finish, beams)
