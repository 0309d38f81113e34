"""The journey of a prompt: one timed pass, what the head answers, and what may be wrong with the prompt.

Shapes come from the blueprint (`stages`), so nothing has to be recorded; logits and times come from one real pass.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Unpack, cast

import numpy as np

from glassformer.blueprints import Blueprint
from glassformer.engine.protocol import Description, Executor, Feed
from glassformer.ground.candidates import Candidates, top
from glassformer.ground.changes import Change, Where
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.sites import ENCODER, Watch
from glassformer.see import weights
from glassformer.see.journey.prompt_warnings import prompt_warnings
from glassformer.see.journey.stages import stages
from glassformer.see.journey.view import Answer, Journey, Phase, Stage
from glassformer.see.passes import open_row
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import Candidate, candidates, describe_tokens, vocabulary
from glassformer.see.view import Floats
from glassformer.text import BatchEncoding, Tokenizer
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions, encode, is_token_ids, prompt_texts

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
    tokenizer, clock, start = model.tokenizer, Clock(model.blueprint, model.changes), model.decoder_start_token
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


@operation(name="journey", is_property=True)
def journey_of_run(run: RunLike) -> Journey:
    """Text → ids → shapes → scores → token, each row with the Python that gives it."""
    return journey(run.model, run.prompt, run.prompt_ids)


@operation(
    route="look",
    example='glass look "how are you?"   ·   glass look --raw "Today" --json   ·   glass look --blueprint --length 100',
    needs={"length": "blueprint"},
    excludes=(("prompt", "length"), ("sites", "prompt")),
)
def look(
    model: ModelLike,
    prompt: Prompt,
    *,
    pair: Annotated[str | None, about("A second text, for a model that reads pairs, such as question and passage.")] = None,
    **prompt_options: Unpack[PromptKeywords],
) -> Journey:
    """Show how a text becomes the next token: prompt, ids, every shape, logits, the choice, and the cost."""
    options = PromptOptions.of(prompt_options, look)
    if pair is not None:
        if options != PromptOptions():
            raise InputError("two texts are read as they are: raw, system and template are for one. Leave them out.")
        if model.writes:
            raise InputError(f"{model.name} goes on with one text, and reads no second one. Put both into the prompt.")
        if not isinstance(prompt, str) or not prompt or not pair:
            raise InputError("two texts are two strings, neither of them empty.")
        return journey(model, prompt, tuple(model.tokenizer(prompt, pair)["input_ids"]), pair, [prompt, pair])
    text, ids = encode(model, prompt, options)
    if is_token_ids(prompt):
        return journey(model, text, ids)
    texts = prompt_texts(cast(str | Sequence[Mapping[str, Any]], prompt))
    return journey(model, text, ids, None, [*([] if options.system is None else [options.system]), *texts])


def prompt_stages(model: ModelLike, text: str, ids: Sequence[int]) -> tuple[Stage, ...]:
    """The journey of a prompt to the next token as shapes alone, without a pass."""
    _, plain, _ = encode_again(model.tokenizer, text, None, ids)
    dtype = _value_dtype(model.executor.describe())
    return tuple(stages(
        model.blueprint, len(ids), text, plain=plain, start=model.decoder_start_token, dtype=dtype,
        stored=stored_sizes(model),
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


# Answers -----------------------------------------------------------------------------------------------------------


TOP = 10  # candidates of an answer
MAX_PASSAGE = 15  # tokens


def gaps(tokenizer: Tokenizer, ids: Sequence[int], logits: Floats) -> tuple[Answer, ...]:
    """What the model would fill into each gap; logits (length, vocabulary)."""
    mask = tokenizer.mask_token_id
    return tuple(
        Answer("the masked token", candidates(tokenizer, top(logits[index], TOP)), index)
        for index, token in enumerate(ids)
        if token == mask
    )


def label(logits: Floats, name: Callable[[int], str], problem: str | None) -> Answer:
    """All labels of a text; logits (labels,). `problem`: what the model was trained for, where its config says."""
    kind = problem or ("single" if logits.size > 1 else "multi")
    how = "none" if kind == "regression" else "softmax" if kind.startswith("single") else "sigmoid"
    if how == "softmax":
        return Answer("the label", _labels(top(logits, logits.size), name))
    order = np.argsort(-logits, kind="stable").tolist()
    shares = [math.nan if how == "none" else float(1 / (1 + np.exp(-np.float64(logits[index])))) for index in order]
    labels = (Candidate(index, name(index), float(logits[index]), share) for index, share in zip(order, shares, strict=True))
    return Answer("the label", tuple(labels), how=how)


def tags(tokenizer: Tokenizer, ids: Sequence[int], logits: Floats, name: Callable[[int], str]) -> tuple[Answer, ...]:
    """The label of each token that is not put around the text; logits (length, labels)."""
    around = {tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}
    return tuple(
        Answer("the label", _labels(top(logits[index], TOP), name), index)
        for index, token in enumerate(ids)
        if token not in around
    )


def replaced(tokenizer: Tokenizer, ids: Sequence[int], logits: Floats) -> tuple[Answer, ...]:
    """Whether each token is the original one or was put in its place; logits (length,), above zero if it was."""
    both = np.stack((np.zeros_like(logits), logits), -1)
    return tags(tokenizer, ids, both, ("original", "replaced").__getitem__)


def passage(allowed: Sequence[bool], starts: Floats, ends: Floats, text: Callable[[int, int], str]) -> Answer:
    """The best passages; `allowed`: the tokens that may be part of one; starts and ends (length,).

    A passage's probability is that of its beginning times that of its end, among the tokens that may be either.
    """
    inside = np.array(allowed)
    begin, end = (_softmax(np.where(inside, logits, -np.inf)) for logits in (starts, ends))
    shares = np.tril(np.triu(np.outer(begin, end)), MAX_PASSAGE - 1)  # ends at or after its beginning
    places = np.argsort(-shares.ravel(), kind="stable")[:TOP].tolist()
    spans = [divmod(index, len(inside)) for index in places if shares.ravel()[index] > 0]
    return Answer(
        "the passage",
        tuple(
            Candidate(first, text(first, last), float(starts[first] + ends[last]), float(shares[first, last]), last)
            for first, last in spans
        ),
        how="begin × end",
    )


def _labels(best: Candidates, name: Callable[[int], str]) -> tuple[Candidate, ...]:
    return tuple(Candidate(index, name(index), score, share) for index, score, share in best)


def _softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max())
    probabilities: Floats = shifted / shifted.sum()
    return probabilities


# The pass -----------------------------------------------------------------------------------------------------------


def next_token(
    tokenizer: Tokenizer, executor: Executor, clock: Clock, ids: Sequence[int], start: int | None = None
) -> TimedPass:
    """The best candidates for what follows a prompt, or for what an encoder-decoder's target begins with."""
    about = "the next token" if start is None else "the target's first token"
    with open_row(executor, None if start is None else ids) as row:
        clock.start()
        scores = executor.run([Feed(row, ids if start is None else (start,), watch=clock.watch)])[0]
        clock.lap(SCORED)
        best = scores.top(TOP)
        clock.lap(CHOSEN)
        tokenizer.decode([int(best.ids[0])])
        clock.lap(DECODED)
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
        allowed = [owner == int(second) for owner in encoding.sequence_ids()]
        offsets = encoding["offset_mapping"]
        if not any(allowed):
            return (), "There are no tokens in which an answer could be found."
        starts, ends = (logits[0].float().cpu().numpy() for logits in (output.start_logits, output.end_logits))
        best = passage(allowed, starts, ends, lambda first, last: text[offsets[first][0] : offsets[last][1]])
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


# Times ---------------------------------------------------------------------------------------------------------------


ENCODED, SCORED, CHOSEN, DECODED = "encoded", "scored", "chosen", "decoded"  # what is timed besides the sites of a pass


class Clock:
    """The seconds of one pass on any executor, without changing a number: up to each site, since the one before.

    A `Change` that changes nothing and notes the time is put at the embedding, after every block and after the last norm. An
    executor that never calls it, since it takes changes as mere data, leaves those times unknown.
    """

    def __init__(self, blueprint: Blueprint, changes: Mapping[str, Change] | None = None) -> None:
        """`changes`: what is changed in the model anyway; at a site that is timed, both happen."""
        self.seconds: dict[str, float] = {}
        stacks = ((ENCODER, blueprint.encoder_blocks), ("", blueprint.blocks))
        timed = (name for stack, count in stacks for name in _sites(stack, count))
        sites = [site for site in timed if site in blueprint.sites]
        ticks = {site: Tick(clock=self, site=site, change=(changes or {}).get(site)) for site in sites}
        self.watch = Watch(changes={**(changes or {}), **ticks})
        self._last = 0.0

    def start(self) -> None:
        self._last = time.perf_counter()

    def lap(self, name: str, value: Any = None) -> None:
        """Note the time since the last note; a value on a device is waited for."""
        kind = getattr(getattr(value, "device", None), "type", "cpu")
        if kind != "cpu":
            getattr(sys.modules["torch"], kind).synchronize()
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last  # a long prompt goes through in pieces
        self._last = now


def _sites(stack: str, count: int) -> list[str]:
    return [f"{stack}embedding", *(f"{stack}blocks.{index}.residual" for index in range(count)), f"{stack}final"]


@dataclass(frozen=True, slots=True)
class Tick(Change):
    """Notes the time, and changes nothing but what `change` does."""

    clock: Clock | None = None
    site: str = ""
    change: Change | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return () if self.change is None else self.change.inputs

    def apply(self, value: Any, where: Where) -> Any:
        if self.change is not None:
            value = self.change.apply(value, where)
        assert self.clock is not None
        self.clock.lap(self.site, value)
        return value


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
    numbers = [index for index, stage in enumerate(rows) if stage.blocks]
    text, part = ("source ", "encoder ") if stack else ("target ", "decoder ") if both else ("", "")
    if not numbers:  # nothing is known of its layers
        names = [f"{stack}final"] if stack else ["final", SCORED]
        return [_phase(part.strip() or "the model", rows, _sum(seconds.get(name) for name in names if name in seconds))]
    before, blocks, after = rows[: numbers[0]], rows[numbers[0] : numbers[-1] + 1], rows[numbers[-1] + 1 :]
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
    each = [seconds.get(f"{stack}blocks.{index}.residual") for index in range(count)]
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
