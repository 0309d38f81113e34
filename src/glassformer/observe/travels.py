"""One text's journey through a model: the timed pass, what the head said, and what may be wrong with the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from glassformer.observe.answers import Answer, gaps, label, passage, tags
from glassformer.observe.cautions import cautions
from glassformer.observe.clock import CHOSEN, SCORED, Clock
from glassformer.observe.journey import Journey, Pass, encoded, journey, next_token, sizes

if TYPE_CHECKING:
    from glassformer.loaded import Loaded


def travel(model: Loaded, text: str, ids: Sequence[int], pair: str | None, said: Sequence[str] | None) -> Journey:
    """The journey of an encoded prompt; one pass."""
    tokenizer, clock, start = model.tokenizer, Clock(model.blueprint, model.changes), model.start
    written = model.writes
    done = next_token(tokenizer, model.executor, clock, ids, start) if written else _read(model, text, ids, pair, clock)
    context, wanted = model.config.context if model.head == "causal" else None, model.settings.max_new_tokens
    wrong = [*cautions(tokenizer, text, ids, said, writes=written, context=context, wanted=wanted)]
    if model.head == "question" and pair is None:
        wrong.append("This model looks for the answer to a question in a second text: give that with --pair, or pair=….")
    return journey(
        tokenizer, model.blueprint, text, ids, done, name=model.name, pair=pair, start=start, stored=sizes(model),
        warnings=wrong,
    )  # fmt: skip


def _read(model: Loaded, text: str, ids: Sequence[int], pair: str | None, clock: Clock) -> Pass:
    """What a head that does not write says of a text: of each gap, of each token, of the whole, or where the answer is.

    Where there is nothing to choose from, a word on why.
    """
    import torch

    module, (found, _, _) = model.module, encoded(model.tokenizer, text, pair, ids)
    inputs = {"input_ids": ids} | ({"token_type_ids": found["token_type_ids"]} if "token_type_ids" in found else {})
    given = {name: torch.tensor([list(values)], device=module.device) for name, values in inputs.items()}
    with torch.inference_mode():
        clock.start()
        output = module(**given, watch=clock.watch)
    clock.lap(SCORED, output.to_tuple()[0])
    answers, about = _answers(model, output, ids, text if pair is None else pair, found, pair is not None)
    if answers:
        clock.lap(CHOSEN)
    dtype = str(module.dtype).removeprefix("torch.")
    return Pass(answers, about, clock.seconds, dtype, f"PyTorch (on {module.device}, {dtype})")


def _answers(
    model: Loaded, output: Any, ids: Sequence[int], text: str, found: Any, second: bool
) -> tuple[tuple[Answer, ...], str]:
    """What a head's output says, and of what; `text`: where a passage is looked for."""
    if model.head == "question":
        own = [owner == int(second) for owner in found.sequence_ids()]
        places = found["offset_mapping"]
        if not any(own):
            return (), "There are no tokens in which an answer could be found."
        starts, ends = (one[0].float().cpu().numpy() for one in (output.start_logits, output.end_logits))
        best = passage(own, starts, ends, lambda first, last: text[places[first][0] : places[last][1]])
        return (best,), best.about
    if model.head == "base":
        return (), "This model ends with the states of its tokens."
    scores = output.logits[0].float().cpu().numpy()
    if model.head == "sequence":
        return (label(scores, model.label, model.config.problem_type),), "the label"
    if model.head == "token":
        tagged = tags(model.tokenizer, ids, scores, model.label)
        return tagged, "the label of each token" if tagged else "There are no tokens that could have a label."
    filled = gaps(model.tokenizer, ids, scores)
    said = f"Put {model.tokenizer.mask_token} into the text to see what this model would fill in."
    return filled, "the masked token" if filled else said
