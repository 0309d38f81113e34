"""The journey of a prompt: one timed pass, what the head answers, and what may be wrong with the prompt.

Shapes come from the blueprint (`stages`), so nothing has to be recorded; scores and times come from one real pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glassformer.blueprints import Blueprint
from glassformer.engine.protocol import Description, Executor, Feed
from glassformer.observe import weights
from glassformer.observe.answers import TOP, candidates, gaps, label, passage, replaced, tags
from glassformer.observe.clock import CHOSEN, DECODED, ENCODED, SCORED, Clock
from glassformer.observe.prompt_warnings import prompt_warnings
from glassformer.observe.protocols import ModelLike
from glassformer.observe.stages import stages
from glassformer.observe.tokens import describe_tokens
from glassformer.observe.vocabulary import vocabulary
from glassformer.text import BatchEncoding, Tokenizer
from glassformer.views.answers import Answer
from glassformer.views.journey import Journey, Phase, Stage

OUTSIDE = ("text", "pair", "ids", "start", "sites", "pooled", "next scores", "best id", "next text")  # stages of no site


@dataclass(frozen=True)
class TimedPass:
    """One pass: its answers and its times."""

    answers: tuple[Answer, ...]
    about: str  # what the answers are about; where there are none, why
    seconds: Mapping[str, float]  # up to each site that is timed, and of what is done around the model
    dtype: str  # what values are computed in
    measured: str


def journey(
    model: ModelLike, text: str, ids: Sequence[int], pair: str | None = None, user_texts: Sequence[str] | None = None
) -> Journey:
    """The journey of an encoded prompt; one pass. `user_texts`: what it was before a template was rendered around it."""
    tokenizer, clock, start = model.tokenizer, Clock(model.blueprint, model.changes), model.start
    if model.writes:
        timed = next_token(tokenizer, model.executor, clock, ids, start)
    else:
        timed = _encoder_pass(model, text, ids, pair, clock)
    warnings = list(prompt_warnings(
        tokenizer, text, ids, user_texts, writes=model.writes,
        context=model.config.context if model.head == "causal" else None, max_new_tokens=model.settings.max_new_tokens,
    ))  # fmt: skip
    if model.head == "question" and pair is None:
        warnings.append("This model looks for the answer to a question in a second text: give that with --pair, or pair=….")
    return assemble(
        tokenizer, model.blueprint, text, ids, timed, name=model.name, pair=pair, start=start, stored=stored_sizes(model),
        warnings=warnings,
    )  # fmt: skip


def prompt_stages(model: ModelLike, text: str, ids: Sequence[int]) -> tuple[Stage, ...]:
    """The journey of a prompt to the next token as shapes alone, without a pass."""
    _, plain, _ = encode_again(model.tokenizer, text, None, ids)
    dtype = _value_dtype(model.executor.describe())
    return tuple(stages(
        model.blueprint, len(ids), text, plain=plain, start=model.start, dtype=dtype, stored=stored_sizes(model)
    ))  # fmt: skip


def assemble(
    tokenizer: Tokenizer,
    blueprint: Blueprint,
    text: str,
    ids: Sequence[int],
    timed: TimedPass,
    *,
    name: str = "",
    pair: str | None = None,
    start: int | None = None,
    stored: Mapping[str, int] | None = None,
    warnings: Sequence[str] = (),
) -> Journey:
    """The journey of an encoded prompt through a pass; `start` is what an encoder-decoder's target begins with."""
    _, plain, seconds = encode_again(tokenizer, text, pair, ids)
    rows = stages(blueprint, len(ids), text, pair, plain=plain, start=start, dtype=timed.dtype, stored=stored)
    return Journey(
        model=name,
        prompt=text,
        tokens=describe_tokens(tokenizer, ids),
        stages=tuple(rows),
        candidates=timed.answers[0].candidates if timed.answers else (),
        vocabulary=vocabulary(tokenizer, blueprint),
        answer=timed.about,
        answers=timed.answers,
        target=() if start is None else describe_tokens(tokenizer, [start]),
        pair=pair,
        phases=phases(rows, {ENCODED: seconds, **timed.seconds}),
        measured=timed.measured,
        warnings=tuple(warnings),
    )


def stored_sizes(model: Any) -> dict[str, int]:
    """The bytes of each weight as it is stored; of a model that is in memory only, as it is there."""
    inventory = weights.inventory(model)
    return {name: inventory.tensors[stored].size for name, stored in weights.match_names(inventory).names.items()}


def encode_again(tokenizer: Tokenizer, text: str, pair: str | None, ids: Sequence[int]) -> tuple[BatchEncoding, bool, float]:
    """The encoding of a text that gives these ids, whether it is without special tokens, and how long it takes."""
    for special in (False, True):
        started = time.perf_counter()
        encoding = tokenizer(text, pair, add_special_tokens=special, return_offsets_mapping=True)
        seconds = time.perf_counter() - started
        if list(encoding["input_ids"]) == list(ids):
            break
    return encoding, not special, seconds


# The pass -----------------------------------------------------------------------------------------------------------


def next_token(
    tokenizer: Tokenizer, executor: Executor, clock: Clock, ids: Sequence[int], start: int | None = None
) -> TimedPass:
    """The best candidates for what follows a prompt, or for what an encoder-decoder's target begins with."""
    about = "the next token" if start is None else "the target's first token"
    row = executor.open(None if start is None else ids)
    try:
        clock.start()
        scores = executor.run([Feed(row, ids if start is None else (start,), watch=clock.watch)])[0]
        clock.lap(SCORED)
        best = scores.top(TOP)
        clock.lap(CHOSEN)
        tokenizer.decode([int(best.ids[0])])
        clock.lap(DECODED)
    finally:
        executor.close(row)
    description = executor.describe()
    name, device = description.name, description.device
    where = description.notes[0] if name == device else f"on {device}, {description.dtype}"
    answer = Answer(about, candidates(tokenizer, best))
    return TimedPass((answer,), about, clock.seconds, _value_dtype(description), f"the {name} executor ({where})")


def _value_dtype(description: Description) -> str:
    """What an executor computes values in: an engine names the type of its weights, and computes in float32."""
    return description.dtype if description.name == "plain" else "float32"


def _encoder_pass(model: ModelLike, text: str, ids: Sequence[int], pair: str | None, clock: Clock) -> TimedPass:
    """What an encoder's head answers for a text: for each gap, each token or the whole text, or where the answer is.

    Where there is nothing to answer, `about` says why.
    """
    module, (encoding, _, _) = model.module, encode_again(model.tokenizer, text, pair, ids)
    import torch

    inputs = {"input_ids": ids} | ({"token_type_ids": encoding["token_type_ids"]} if "token_type_ids" in encoding else {})
    tensors = {name: torch.tensor([list(values)], device=module.device) for name, values in inputs.items()}
    with torch.inference_mode():
        clock.start()
        output = module(**tensors, watch=clock.watch)
    clock.lap(SCORED, output.to_tuple()[0])
    answers, about = _answers(model, output, ids, text if pair is None else pair, encoding, pair is not None)
    if answers:
        clock.lap(CHOSEN)
    dtype = str(module.dtype).removeprefix("torch.")
    return TimedPass(answers, about, clock.seconds, dtype, f"PyTorch (on {module.device}, {dtype})")


def _answers(
    model: ModelLike, output: Any, ids: Sequence[int], text: str, encoding: Any, second: bool
) -> tuple[tuple[Answer, ...], str]:
    """The answers in a head's output, and what they are about; `text`: where a passage is looked for."""
    if model.head == "question":
        own = [owner == int(second) for owner in encoding.sequence_ids()]
        offsets = encoding["offset_mapping"]
        if not any(own):
            return (), "There are no tokens in which an answer could be found."
        starts, ends = (logits[0].float().cpu().numpy() for logits in (output.start_logits, output.end_logits))
        best = passage(own, starts, ends, lambda first, last: text[offsets[first][0] : offsets[last][1]])
        return (best,), best.about
    if model.head == "base":
        return (), "This model ends with the states of its tokens."
    scores = output.logits[0].float().cpu().numpy()
    if model.head == "sequence":
        return (label(scores, model.label, model.config.problem_type),), "the label"
    if model.head == "discriminator":
        return replaced(model.tokenizer, ids, scores), "which tokens were replaced"
    if model.head == "token":
        tagged = tags(model.tokenizer, ids, scores, model.label)
        return tagged, "the label of each token" if tagged else "There are no tokens that could have a label."
    filled = gaps(model.tokenizer, ids, scores)
    hint = f"Put {model.tokenizer.mask_token} into the text to see what this model would fill in."
    return filled, "the masked token" if filled else hint


# Phases -------------------------------------------------------------------------------------------------------------


def phases(rows: Sequence[Stage], seconds: Mapping[str, float]) -> tuple[Phase, ...]:
    """The timed phases of a journey's stages; `seconds` as a clock noted them."""
    sizes = {stage.name: stage.bytes for stage in rows}
    inside = [stage for stage in rows if stage.name not in OUTSIDE]
    both = any(stage.stack for stage in inside)
    timed = [Phase("text to ids", seconds.get(ENCODED), bytes=sizes.get("ids", 0))]
    for stack in dict.fromkeys(stage.stack for stage in inside):
        timed += _stack_phases([stage for stage in inside if stage.stack == stack], stack, both, seconds)
    if (output := sizes.get("next scores", sizes.get("pooled"))) is not None:
        timed[-1] = replace(timed[-1], bytes=output)  # the last token's are all that is computed
    if "next scores" in sizes:
        timed.append(Phase("choosing", seconds.get(CHOSEN), bytes=sizes["best id"]))
        timed.append(Phase("id to text", seconds.get(DECODED)))
    elif CHOSEN in seconds:
        timed.append(Phase("finding the answer", seconds[CHOSEN]))
    return tuple(timed)


def _stack_phases(rows: Sequence[Stage], stack: str, both: bool, seconds: Mapping[str, float]) -> list[Phase]:
    """The phases of a model, or of one stack of an encoder-decoder."""
    numbers = [number for number, stage in enumerate(rows) if stage.blocks]
    before, blocks, after = rows[: numbers[0]], rows[numbers[0] : numbers[-1] + 1], rows[numbers[-1] + 1 :]
    text, part = ("source ", "encoder ") if stack else ("target ", "decoder ") if both else ("", "")
    embedding = _phase(f"{text}embedding", before, seconds.get(f"{stack}embedding"))
    inner = _block_phase(part, stack, blocks, seconds)
    ends = _sum(seconds.get(name) for name in ([f"{stack}final"] if stack else ["final", SCORED]))
    normed = any(stage.parameters for stage in after if stage.name.endswith("final"))
    if any(stage.name == "scores" for stage in after):
        return [embedding, inner, _phase("norm and head" if normed else "head", after, ends)]
    if any(stage.parameters for stage in after):
        return [embedding, inner, _phase(f"{part}norm" if normed else "pooler", after, ends)]
    return [embedding, replace(inner, seconds=_sum([inner.seconds, ends]))]  # nothing is done there


def _block_phase(part: str, stack: str, stages: Sequence[Stage], seconds: Mapping[str, float]) -> Phase:
    count = max(stage.blocks[1] for stage in stages if stage.blocks) + 1
    each = [seconds.get(f"{stack}blocks.{number}.residual") for number in range(count)]
    phase = _phase(f"{part}blocks 0–{count - 1}" if count > 1 else f"{part}block 0", stages, _sum(each))
    return replace(phase, each=() if None in each else tuple(time for time in each if time is not None))


def _phase(name: str, stages: Sequence[Stage], seconds: float | None) -> Phase:
    times = [stage.blocks[1] - stage.blocks[0] + 1 if stage.blocks else 1 for stage in stages]
    stored = _sum(stage.stored and stage.stored * count for stage, count in zip(stages, times, strict=True))
    parameters = sum(stage.parameters * count for stage, count in zip(stages, times, strict=True))
    sizes = [stage.bytes for stage in stages if stage.dtype]
    return Phase(name, seconds, parameters, None if stored is None else int(stored), sizes[-1] if sizes else 0)


def _sum(numbers: Iterable[float | None]) -> float | None:
    """None where one of them is unknown."""
    terms = list(numbers)
    return None if None in terms else sum(term for term in terms if term is not None)
