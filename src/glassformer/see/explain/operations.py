"""How an explanation is found: words are taken away, parts are put back, and what is claimed is checked.

1. Each word is left out, and exchanged for others that could stand in its place; what the lead loses when it is exchanged
   is what the word is worth, for a text without it may only be broken.
2. The best exchange gives another text, whose answer is now the rival. Into its pass the stream at the last token is put
   from the first text, block by block: where the lead comes back, the parts are that carry it. There each head's and each
   MLP's value is put in, one at a time, then the best together.
3. What is named is checked both ways: kept alone, the answer must stay; taken away, it must go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Unpack

from glassformer.ground.errors import InputError, spell
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.see.activations import Activations, token_ids
from glassformer.see.attribution import AgainstArgument, PositionArgument, TokenArgument
from glassformer.see.explain.evidence import evidence_for
from glassformer.see.explain.explanation import Check, Draw, Explanation, by_worth, sentences
from glassformer.see.explain.parts import carried_by
from glassformer.see.explain.passages import ReadPassages, read_two
from glassformer.see.explain.question import FULL, QUICK, Question, ask, check_explainable, read_answer
from glassformer.see.explain.similarity import explain_similarity
from glassformer.see.explain.telling import LOOKED_THROUGH, telling_token
from glassformer.see.explain.texts import ReadWhole, read_text
from glassformer.see.explain.word_effects import word_checks, word_effects
from glassformer.see.explain.words import spelled_places
from glassformer.see.patching.view import AnswerToken
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import find_token
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions

STAGES = 3  # that the progress counts: the words, what carries them, the checks
MOST_PIECES = 8  # of a word, that are looked for after its first
QuickArgument = Annotated[bool, about("Measure less: each word exchanged once, fewer parts, no checks.")]
EvidenceArgument = Annotated[bool, about("Say of each clause how it was measured, and how sure it is.")]


@operation(
    name="explain",
    verb="why",
    route="explain",
    example='glass why "What is the capital of France?"   ·   glass why "What is the capital of France?" --token is   ·   '
    'glass why --raw "The capital of France is" --against " Rome"   ·   '
    'glass why -m minilm "How old are you?" --pair "What is your age?"',
)
def explain_answer(
    model: ModelLike,
    prompt: Prompt,
    *,
    token: Annotated[
        int | str | None,
        about("The answer's token to explain: its index or its text; by default the one that tells most.", "--token", "-t"),
    ] = None,
    against: AgainstArgument = None,
    tokens: Annotated[
        int, about("How many tokens of the answer are written.", "--tokens", "-n", minimum=1, served_minimum=1)
    ] = 24,
    quick: QuickArgument = False,
    evidence: EvidenceArgument = False,
    pair: Annotated[
        str | None,
        about(
            "A second text: that in which the answer to a question is found, or to which the first one is similar.",
            "--pair",
            "--context",
        ),
    ] = None,
    answer_ids: Annotated[
        Sequence[int] | None,
        about(
            "The ids of an answer to a prompt of ids; by default one is written.",
            typed=False,
            served_items=(1, 100_000),
            served_minimum=0,
        ),
    ] = None,
    contents: Annotated[
        Sequence[str] | None,
        about("The texts in a prompt of ids, around which its template stands.", typed=False, served_items=(0, 10_000)),
    ] = None,
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> Explanation:
    """Say why the model answers as it does: the words that decide, what carries them, and whether that holds."""
    options = PromptOptions.of(prompt_options, explain_answer)
    if pair is not None:
        if options.system is not None or options.template:
            raise InputError("two texts are read as they are: system and template are for one. Leave them out.")
        if answer_ids is not None or contents is not None:
            raise InputError("answer_ids and contents are of an answer that was written, which two texts have not.")
        return _explained_pair(model, prompt, pair, token, against, quick, evidence, progress)
    if not model.writes:
        return explain(model.read(prompt), token=token, against=against, quick=quick, evidence=evidence, progress=progress)
    if answer_ids is None:
        run = model.watch(prompt, max_new_tokens=tokens, **prompt_options)
        return explain_run(run, token, against, quick=quick, evidence=evidence, progress=progress)
    reading = Activations.of_ids(model, token_ids(prompt), answer_ids, contents)
    return _explained_token(reading, None, token, against, quick, evidence, progress)


@operation(name="explain")
def explain_run(
    run: RunLike,
    token: int | str | None = None,
    against: int | str | None = None,
    *,
    quick: QuickArgument = False,
    evidence: EvidenceArgument = False,
    progress: Progress | None = None,
) -> Explanation:
    """Why a run wrote one of its tokens: the one named, or the one that tells most."""
    return _explained_token(Activations.of_run(run), run, token, against, quick, evidence, progress)


def _explained_pair(
    model: ModelLike, prompt: Prompt, pair: str, token: int | str | None, against: int | str | None, quick: bool,
    evidence: bool, progress: Progress | None,
) -> Explanation:  # fmt: skip
    """Why a model finds an answer in a text, labels two texts as it does, or holds them for similar."""
    if not isinstance(prompt, str):
        raise InputError(f"{spell('pair')} goes with a text. Leave it out after token ids or messages.")
    if model.head not in ("question", "sequence"):
        if token is not None or against is not None:
            raise InputError(
                f"two texts' similarity has no tokens to choose. Leave out {spell('token')} and {spell('against')}."
            )
        return explain_similarity(model, prompt, pair, quick=quick, evidence=evidence, progress=progress)
    reading, encoding = read_two(model, prompt, pair)
    text = ReadPassages(reading, encoding, pair) if model.head == "question" else ReadWhole(reading, None)
    text.read()
    question = ask(text, text.position, token, against)
    question.effort = QUICK if quick else FULL
    return explained(question, progress, None, evidence)


def _explained_token(
    reading: Activations, run: RunLike | None, token: int | str | None, against: int | str | None, quick: bool,
    evidence: bool, progress: Progress | None,
) -> Explanation:  # fmt: skip
    """Why one of the tokens after a prompt came; `run`: that wrote them."""
    check_explainable(reading)
    first = reading.prompt_length
    index = None if token is None else find_token(token, reading.texts[first:]) % max(len(reading) - first, 1)
    end = min(len(reading), first + LOOKED_THROUGH) if index is None else first + index
    with read_text(reading, end, first - 1) as text:
        index = telling_token(text) if index is None else index
        text.position = first + index - 1
        question = ask(text, first + index - 1, reading.ids[first + index], against)
        question.effort = QUICK if quick else FULL
        return explained(question, progress, None if run is None else drawn(run, index), evidence)


@operation()
def explain(
    reading: Activations,
    position: PositionArgument = -1,
    token: TokenArgument = None,
    against: AgainstArgument = None,
    *,
    quick: QuickArgument = False,
    evidence: EvidenceArgument = False,
    progress: Progress | None = None,
) -> Explanation:
    """Say why a token comes next: the words that decide, what carries them, and whether that holds.

    A token that is named need not be the best. `against` is by default the runner-up: the best other answer, of the same
    kind if one is near.
    """
    check_explainable(reading)
    with read_answer(reading, position) as text:
        question = ask(text, text.position, token, against)
        question.effort = QUICK if quick else FULL
        return explained(question, progress, None, evidence)


def explained(
    question: Question,
    progress: Progress | None,
    by: tuple[str, bool] | None,
    evidence: bool,
) -> Explanation:
    """The answer to a question."""
    reading, logits = question.reading, question.logits
    effects = word_effects(question)
    if progress is not None:
        progress(1, STAGES)
    order, named = by_worth([effect for _, effect in effects], question.whole)
    effects = [effects[index] for index in order]
    measured = tuple(effect for _, effect in effects)
    carried = carried_by(question, *effects[0]) if named and question.whole > 0 else None
    if progress is not None:
        progress(2, STAGES)
    checks: tuple[Check, ...] = ()
    if question.effort.checks:
        checks = (*word_checks(question, [word for word, _ in effects], named), *(carried[1] if carried else ()))
    if progress is not None:
        progress(STAGES, STAGES)
    probabilities = question.text.probabilities(logits)
    best = int(logits.argmax())
    rank = int((logits > logits[question.token]).sum()) + 1
    draw = None
    if rank > 1:
        shares = float(probabilities[best]), rank, float(probabilities[question.token])
        draw = Draw(question.text.answer(best), *shares, *(by or (None, False)))
    answer, rival = (AnswerToken(chosen, question.text.answer(chosen)) for chosen in (question.token, question.lead.against))
    said = sentences(
        answer.text,
        rival.text,
        question.whole,
        draw,
        measured,
        named,
        carried[0] if carried else None,
        written_word(question),
    )
    return Explanation(
        reading.model.name, question.position, question.text.texts_with_words, answer,
        float(probabilities[question.token]), rival, question.whole, draw, measured, named,
        carried[0] if carried else None, checks, said,
        evidence_for(question, answer, rival, measured[:named], carried[0] if carried else None) if evidence else (),
    )  # fmt: skip


def written_word(question: Question) -> str | None:
    """The word or number that the token was written as a piece of; None in scripts that put no blanks between words."""
    reading, index = question.reading, question.position + 1
    if not reading.model.writes or reading.ids[index : index + 1] != (question.token,):
        return None
    texts = reading.texts
    word = next((place for place in spelled_places(texts[: index + MOST_PIECES]) if index in place), ())
    written = "".join(texts[place] for place in word).strip()
    spaced = all(letter.isdigit() or letter.lower() != letter.upper() for letter in written)
    return written if len(word) > 1 and spaced else None


def drawn(run: RunLike, index: int) -> tuple[str, bool] | None:
    """What put one of a run's tokens before the model's own best, and whether it took that one out."""
    step, settings = run.steps[index], run.settings
    if settings.num_beams > 1:
        return "beams", False
    if (fall := step.waterfall) is not None:
        fates = {fate.id: fate for fate in fall}
        best, chosen = max(fates.values(), key=lambda fate: fate.scores[0]), fates[step.id]
        if best.removed_by is not None:
            return best.removed_by, True
        for rule, score, other in zip(fall.stages, chosen.scores, best.scores, strict=True):
            if score > other and chosen.scores[-1] > best.scores[-1]:
                return rule, False
    return None if step.draw is None else ("draw", False)
