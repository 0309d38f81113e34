"""How an explanation is found: words are taken away, parts are put back, and what is claimed is checked.

1. Each word is left out, and exchanged for others that could stand in its place; what the lead loses when it is exchanged
   is what the word is worth, for a text without it may only be broken.
2. The best exchange gives another text, whose answer is now the rival. Into its pass the stream at the last token is put
   from the first text, block by block: where the lead comes back, the parts are that carry it. There each head's and each
   MLP's value is put in, one at a time, then the best together.
3. What is named is checked both ways: kept alone, the answer must stay; taken away, it must go.

Shapes: logits (vocabulary,); values (heads, 1, head_size) or (1, hidden).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, NamedTuple, TypeVar, Unpack

import numpy as np

from glassformer.ground.candidates import log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch
from glassformer.see.activations import Activations, token_ids
from glassformer.see.attribution import AgainstArgument, PositionArgument, TokenArgument, resolve_token_id, runner_up
from glassformer.see.explain.explanation import (
    Carried,
    Check,
    Draw,
    Evidence,
    Exchange,
    Explanation,
    Outcome,
    PartEffect,
    WordEffect,
    by_worth,
    quoted_list,
    sentences,
    spoken,
)
from glassformer.see.explain.telling import telling_token
from glassformer.see.explain.texts import ReadText, ReadWhole, best_tokens, read_again, read_text
from glassformer.see.explain.words import Word, alike, exchanged, exchanges, spelled_places, without
from glassformer.see.metrics import answer_position, find_label
from glassformer.see.passes import encoder_pass
from glassformer.see.patching.pair import PatchedRun, ReadPair, TextPair, read_pairs
from glassformer.see.patching.view import AnswerToken
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import find_token, token_text
from glassformer.see.view import Floats
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions

MAX_WORDS = 64  # that are taken away one by one; of more, the later ones are
NEAR = 3.0  # bits: how far behind the runner-up a rival of the answer's kind may be
RIVALS = 50  # tokens among which it is looked for
SPECIFIC = 2.0  # times likelier than elsewhere in the text: a token that is no mere function word
STAGES = 3  # that the progress counts: the words, what carries them, the checks
ENOUGH = 0.9  # of the lead's way back
LITTLE = 0.02  # of it: a part that adds less to those before it is left out
MOST_PIECES = 8  # of a word, that are looked for after its first
LENS_BLOCKS = 8  # that the lens reads at a time, from the last one backwards


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    leave_out: bool  # whether words are left out, too
    exchanges: int  # of each of the words that matter most
    words: int  # that are exchanged more than once
    blocks: int  # in which parts are looked for
    parts: int  # that are named at the most
    checks: bool


FULL = Effort(leave_out=True, exchanges=3, words=6, blocks=6, parts=12, checks=True)
QUICK = Effort(leave_out=False, exchanges=1, words=0, blocks=2, parts=3, checks=False)
Name = TypeVar("Name", bound=Hashable)


class Part(NamedTuple):
    """What takes something to the last token."""

    block: int
    head: int | None  # None: the MLP
    cross: bool = False  # of cross-attention

    @property
    def site(self) -> str:
        kind = "mlp.update" if self.head is None else "cross.heads" if self.cross else "attention.heads"
        return f"blocks.{self.block}.{kind}"


@dataclass(frozen=True)
class Lead:
    """How far a token is ahead of others, in bits."""

    token: int
    against: int
    alone: bool  # whether it is held against that one alone, and not against whatever else is best
    aside: tuple[int, ...] = ()  # what came before the rival, and is of another kind: no rivals

    def of(self, logits: Floats) -> float:
        rival = logits[self.against]
        if not self.alone:
            others = logits.copy()
            others[[self.token, *self.aside]] = -np.inf
            rival = others.max()
        return float(logits[self.token] - rival) / math.log(2)


@dataclass
class Question:
    """A token after a position of a text that was read, and its lead."""

    text: ReadText
    position: int
    lead: Lead
    effort: Effort = FULL

    @property
    def reading(self) -> Activations:
        return self.text.reading

    @property
    def token(self) -> int:
        return self.lead.token

    @property
    def ids(self) -> tuple[int, ...]:
        """Those of which words are taken away."""
        return self.text.ids_with_words

    @cached_property
    def logits(self) -> Floats:
        return self.text.logits(self.position)

    @cached_property
    def whole(self) -> float:
        return self.lead.of(self.logits)


QuickArgument = Annotated[bool, about("Measure less: each word exchanged once, fewer parts, no checks.")]
EvidenceArgument = Annotated[bool, about("Say of each clause how it was measured, and how sure it is.")]


@operation(
    name="explain",
    verb="why",
    route="explain",
    example='glass why "What is the capital of France?"   ·   glass why "What is the capital of France?" --token is   ·   '
    'glass why --raw "The capital of France is" --against " Rome"',
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
    PromptOptions.of(prompt_options, explain_answer)
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


def _explained_token(
    reading: Activations, run: RunLike | None, token: int | str | None, against: int | str | None, quick: bool,
    evidence: bool, progress: Progress | None,
) -> Explanation:  # fmt: skip
    """Why one of the tokens after a prompt came; `run`: that wrote them."""
    check_explainable(reading)
    first = reading.prompt_length
    index = None if token is None else find_token(token, reading.texts[first:]) % max(len(reading) - first, 1)
    with read_text(reading, len(reading) if index is None else first + index, first - 1) as text:
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


@contextmanager
def read_answer(reading: Activations, position: int | str) -> Iterator[ReadText]:
    """A text read up to a position, or by an encoder: then to its gap, or for its label."""
    if reading.model.writes:
        at = find_token(position, reading.texts)
        with read_text(reading, at + 1, at) as text:
            yield text
        return
    whole = ReadWhole(reading, answer_position(reading, None if position == -1 else position))
    whole.read()
    yield whole


def check_explainable(reading: Activations) -> None:
    model = reading.model
    if not model.writes and model.head not in ("masked", "sequence", "token"):
        raise InputError(
            f"{model.name} neither goes on with a text nor fills gaps or labels it, so nothing can be explained."
        )


def ask(text: ReadText, position: int, token: int | str | None, against: int | str | None) -> Question:
    """Why a token after a position, and not another one."""
    logits = text.logits(position)
    chosen = answer_index(text, token, logits)
    if against is None:
        lead = Lead(chosen, *rival_of(text, position, chosen))
    else:
        lead = Lead(chosen, answer_index(text, against, logits), alone=True)
    if lead.against == chosen:
        raise InputError("a token has no lead over itself. Hold it against another one.")
    return Question(text, position, lead)


def answer_index(text: ReadText, token: int | str | None, logits: Floats) -> int:
    """The index of a token or a label; None is the best one's."""
    model = text.reading.model
    if token is None or model.writes or model.head == "masked":
        return resolve_token_id(model, token, logits)
    return find_label(model, token).id


def rival_of(text: ReadText, position: int, token: int) -> tuple[int, bool, tuple[int, ...]]:
    """The runner-up; but one of the token's kind if that is near, and then those before it are put aside.

    "Paris" is held against "Lyon" and not against "the": nobody asks why it was not that.
    """
    logits = text.logits(position)
    if len(logits) < 2:
        raise InputError(f"{text.reading.model.name} has one label, so there is no other that it could lead over.")
    first, own = runner_up(logits, token), text.answer(token)
    if not alike(own, own) or not _specific(text, position, token):
        return first, False, ()
    others = [other for other in best_tokens(logits, RIVALS) if other != token]
    for index, other in enumerate(others):
        if logits[first] - logits[other] > NEAR * math.log(2):
            break
        written = text.answer(other)
        fits = alike(written, own) and written[:1].isspace() == own[:1].isspace()
        if fits and _specific(text, position, other):
            return other, False, tuple(others[:index])
    return first, False, ()


def _specific(text: ReadText, position: int, token: int) -> bool:
    """Whether a token is expected here more than elsewhere in the text, as function words are not."""
    return text.probability(position, token) >= SPECIFIC * text.elsewhere(position, token)


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
    probabilities = np.exp(log_softmax(logits))
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


# Words ----------------------------------------------------------------------------------------------------------


def word_effects(question: Question) -> list[tuple[Word, WordEffect]]:
    """What each word is worth: all are left out and exchanged once, and those that matter most a few times more."""
    tokenizer, effort = question.reading.model.tokenizer, question.effort
    words = question.text.words()[-MAX_WORDS:]
    words = [word for word in words if len(without(question.ids, [word])) > 0]
    others = instead(question, words)
    texts = [without(question.ids, [word]) for word in words if effort.leave_out or word not in others]
    texts += [exchanged(question.ids, {word: found[0]}, tokenizer) for word, found in others.items()]
    logits = question.text.after(texts)
    left_out = {
        word: question.lead.of(next(logits)) - question.whole for word in words if effort.leave_out or word not in others
    }
    tried = {word: [_exchange(question, found[0], next(logits))] for word, found in others.items()}
    strongest = sorted(tried, key=lambda word: min(left_out.get(word, 0.0), tried[word][0].change))[: effort.words]
    more = [(word, token) for word in strongest for token in others[word][1:]]
    texts = [exchanged(question.ids, {word: token}, tokenizer) for word, token in more]
    for (word, token), scores in zip(more, question.text.after(texts), strict=True):
        tried[word].append(_exchange(question, token, scores))
    return [
        (word, WordEffect(word.text, word.origin, word.positions, left_out.get(word), tuple(tried.get(word, ()))))
        for word in words
    ]


def instead(question: Question, words: Sequence[Word]) -> dict[Word, list[int]]:
    """For each word that can be exchanged, the tokens to put in its place.

    They are among what the model expects there. Where nothing stands before a word, or its first token is but a piece of it,
    that says little; then what the model lists beside it is looked at first: "Paris, Paris," goes on with other cities.
    """
    text, tokenizer = question.text, question.reading.model.tokenizer
    begin = next((word.first for word in words if word.origin != "template"), 0)
    listed = [word for word in words if word.origin != "template" and (word.first == begin or len(word.places[0]) > 1)]
    if not question.reading.model.writes or question.reading.source is not None:
        listed = []
    special = question.ids[: next((at for at, token in enumerate(question.reading.tokens) if not token.special), 0)]
    lists = [(*special, *tokenizer.encode(f"{word.text}, {word.text},", add_special_tokens=False)) for word in listed]
    beside = {word: best_tokens(logits) for word, logits in zip(listed, text.after(lists), strict=True)}
    found = {
        word: exchanges(
            word,
            [*beside.get(word, ()), *_with_blank_of(question, word)],
            question.reading,
            question.ids,
            question.effort.exchanges,
        )
        for word in words
        if word.origin != "template"
    }
    return {word: tokens for word, tokens in found.items() if tokens}


def _with_blank_of(question: Question, word: Word) -> list[int]:
    """What is expected in a word's place, with a blank before it as the word has."""
    tokenizer = question.reading.model.tokenizer
    blank = token_text(tokenizer, question.ids[word.first])[:1].isspace()
    return [token for token in question.text.expected(word) if token_text(tokenizer, token)[:1].isspace() == blank]


def _exchange(question: Question, token: int, logits: Floats) -> Exchange:
    tokenizer, best = question.reading.model.tokenizer, int(logits.argmax())
    outcome: Outcome = "another kind"
    if best == question.token:
        outcome = "unchanged"
    elif alike(question.text.answer(best), question.text.answer(question.token)):
        outcome = "another"
    return Exchange(
        token_text(tokenizer, token).strip(), token, question.lead.of(logits) - question.whole, question.text.answer(best),
        best, float(np.exp(log_softmax(logits)[best])), outcome,
    )  # fmt: skip


def word_checks(question: Question, words: Sequence[Word], named: int) -> tuple[Check, ...]:
    """Whether the named words keep the answer ahead among other words, and whether it falls behind without them."""
    chosen, tokenizer = words[:named], question.reading.model.tokenizer
    if not chosen:
        return ()
    others = {word: tokens[0] for word, tokens in instead(question, words[named:]).items()}
    names = quoted_list([word.text for word in chosen])
    texts = [without(question.ids, chosen) or question.ids[-1:]]
    if others:
        texts.append(exchanged(question.ids, others, tokenizer))
    leads = [question.lead.of(logits) for logits in question.text.after(texts)]
    checks = [Check(f"without {names}, the answer falls behind", leads[0], leads[0] <= 0)]
    if others:
        put = ", ".join(f"{word.text} → {token_text(tokenizer, other).strip()}" for word, other in others.items())
        checks.append(Check(f"with other words around {names} ({put}), it stays ahead", leads[1], leads[1] > 0))
    return tuple(checks)


# Parts ----------------------------------------------------------------------------------------------------------


def carried_by(question: Question, word: Word, effect: WordEffect) -> tuple[Carried, tuple[Check, ...]] | None:
    """What brings the word's difference to the last token: parts of one text put into the pass of the other."""
    reading, model = question.reading, question.reading.model
    best = effect.best_exchange
    causal = model.writes and reading.source is None
    if best is None or best.change >= 0 or not (model.writes or model.head == "masked"):
        return None
    if causal and question.position in word.positions:
        return None
    if not question.lead.alone and best.answer_id != question.token:
        question = replace(question, lead=Lead(question.token, best.answer_id, alone=True))
    ids = exchanged(question.ids, {word: best.id}, model.tokenizer)
    first = replace(reading, ids=reading.ids[: question.position + 1]) if model.writes else reading
    second = replace(first, ids=ids) if reading.source is None else replace(first, source=ids)
    kinds = ("attention.heads", "cross.heads", "mlp.update", "residual")
    sites = [f"blocks.{block}.{kind}" for block in range(model.blueprint.blocks) for kind in kinds]
    sites = [site for site in sites if site in model.blueprint.sites]
    with read_pairs([TextPair(first, second, -1 if causal else None, aligned=True)], sites) as (read,):
        search = PartSearch(question, read)
        parts = search.best_parts()
        taken = search.lead_without([part.place for part in parts]) if parts and question.effort.checks else math.nan
    attention = search.attention(word, parts)
    rival = AnswerToken(question.lead.against, question.text.answer(question.lead.against))
    carried = Carried(
        word.text, best.text, best.answer, rival, search.here, search.there,
        tuple(
            PartEffect(
                part.place.block, part.place.head, part.restored, part.together, attention.get(part.place), part.place.cross
            )
            for part in parts
        ),
        search.settled, search.seen_by_lens if question.effort.checks else None,
        "the last token" if model.writes else "the gap",
    )  # fmt: skip
    if not parts or not question.effort.checks:
        return carried, ()
    names = "the named parts" if len(parts) > 1 else carried.parts[0].name
    put = search.there + parts[-1].together * (search.here - search.there)
    checks = (
        Check(f"with “{best.text}”, but {names} as in the text, the answer is ahead", put, put > 0),
        Check(f"in the text, but {names} as with “{best.text}”, the lead is at most half", taken, taken <= search.here / 2),
    )
    return carried, checks


@dataclass(frozen=True)
class FoundPart:
    place: Part
    restored: float
    together: float


@dataclass
class PartSearch:
    """The second text of a pair, with parts of the first one's last token put into it."""

    question: Question
    read: ReadPair

    def __post_init__(self) -> None:
        self.blocks = self.question.reading.model.blueprint.blocks
        pair = self.read.pair  # an encoder's gap, or the last token
        self.origin, self.last = pair.masks or (len(pair.first.ids) - 1, len(pair.second.ids) - 1)
        self.here, self.there = map(self.question.lead.of, self.read.scores)

    def restored(self, lead: float) -> float:
        return (lead - self.there) / (self.here - self.there) if self.here != self.there else 0.0

    def best_parts(self) -> list[FoundPart]:
        """The parts that restore most, each alone; then together, until that is enough."""
        alone = dict(self._restored_by({place: [place] for place in self.places()}))
        order = [place for place in sorted(alone, key=lambda place: -alone[place]) if alone[place] > 0][
            : self.question.effort.parts
        ]
        together = self._together(order)
        added = [after - before for before, after in zip([0.0, *together], together, strict=False)]
        if min(added, default=1.0) < LITTLE:
            order = [place for place, more in zip(order, added, strict=True) if more >= LITTLE]
            together = self._together(order)
        count = next((count for count, share in enumerate(together, 1) if share >= ENOUGH), len(order))
        return [FoundPart(place, alone[place], share) for place, share in list(zip(order, together, strict=True))[:count]]

    def _together(self, order: Sequence[Part]) -> list[float]:
        """What the first part restores, the first two, and so on."""
        return [share for _, share in self._restored_by({count: order[:count] for count in range(1, len(order) + 1)})]

    def places(self) -> list[Part]:
        """The heads and MLPs of the blocks in which most of the lead comes back."""
        values, shares = self.read.values, self.arrived
        gains = {block: share - shares.get(block - 1, 0.0) for block, share in shares.items()}
        blocks = sorted(sorted(gains, key=lambda block: -gains[block])[: self.question.effort.blocks])
        heads = [
            Part(block, head, cross)
            for block in blocks
            for cross, kind in ((False, "attention"), (True, "cross"))
            for head in range(len(values.get(f"blocks.{block}.{kind}.heads", ())))
        ]
        return [*heads, *(Part(block, None) for block in blocks if f"blocks.{block}.mlp.update" in values)]

    @cached_property
    def arrived(self) -> dict[int, float]:
        """What the last token's stream restores as it leaves each block."""
        sites = {block: f"blocks.{block}.residual" for block in range(self.blocks)}
        runs = [
            PatchedRun(block, Watch(changes={site: self._change(site)}), self.last, block) for block, site in sites.items()
        ]
        return {block: self.restored(self.question.lead.of(scores)) for block, scores, _ in self.read.patched(runs)}

    @property
    def settled(self) -> int | None:
        """The block from which on the last token's stream alone brings the answer."""
        late = self.blocks
        while late and self.arrived[late - 1] >= ENOUGH:
            late -= 1
        return late if late < self.blocks else None

    @cached_property
    def seen_by_lens(self) -> int | None:
        """The block from which on the last norm and the head read the answer off the last token's stream."""
        model, late = self.question.reading.model, self.blocks
        while late:
            blocks = range(max(0, late - LENS_BLOCKS), late)
            states = np.stack([self.read.values[f"blocks.{block}.residual"][self.origin] for block in blocks])
            for logits in model.unembed(states)[::-1]:
                if int(logits.argmax()) != self.question.token:
                    return late if late < self.blocks else None
                late -= 1
        return 0

    def lead_with(self, places: Sequence[Part]) -> float:
        """The lead in the second text with some parts as in the first."""
        return next((lead for _, lead in self._leads({0: places})), self.there) if places else self.there

    def lead_without(self, places: Sequence[Part]) -> float:
        """The lead in the first text with some parts as in the second."""
        second, sites = self.read.second, frozenset(place.site for place in places)
        if second is not None:
            _, values = read_again(second.executor, second.row, second.ids, self.last, Watch(sites))
        else:
            values = self.read.pair.second.values_at([self.last], *sites)
        return self.question.lead.of(self._at_end(self._watch(places, values, self.origin, -1))[0])

    def _at_end(self, watch: Watch) -> tuple[Floats, dict[str, Floats]]:
        """The first text's last token again, or all of an encoder's."""
        text = self.question.text
        if not text.reading.model.writes:
            scores, sites = encoder_pass(text.reading.model, text.ids, watch)
            assert scores is not None
            return scores[self.origin], sites
        return read_again(text.executor, text.row, text.ids, self.question.position, watch)

    def attention(self, word: Word, parts: Sequence[FoundPart]) -> dict[Part, float]:
        """What each head gave to the word."""
        in_source = self.question.reading.source is not None
        places = [part.place for part in parts if part.place.head is not None and part.place.cross == in_source]
        sites = {place: place.site.replace(".heads", ".pattern") for place in places}
        sites = {place: site for place, site in sites.items() if site in self.question.reading.model.blueprint.sites}
        if not sites:
            return {}
        _, patterns = self._at_end(Watch(frozenset(sites.values())))
        at, positions = 0 if self.question.reading.model.writes else self.origin, list(word.positions)
        return {place: float(patterns[site][place.head, at, positions].sum()) for place, site in sites.items()}

    def _restored_by(self, sets: Mapping[Name, Sequence[Part]]) -> Iterator[tuple[Name, float]]:
        return ((name, self.restored(lead)) for name, lead in self._leads(sets))

    def _leads(self, sets: Mapping[Name, Sequence[Part]]) -> Iterator[tuple[Name, float]]:
        runs = [
            PatchedRun(
                name,
                self._watch(places, self.read.values, self.last, self.origin),
                self.last,
                min(place.block for place in places),
            )
            for name, places in sets.items()
        ]
        return ((name, self.question.lead.of(scores)) for name, scores, _ in self.read.patched(runs))

    def _watch(self, places: Sequence[Part], values: Mapping[str, Floats], position: int, origin: int) -> Watch:
        """Some parts' values at a place of one text, put into a position of the other's pass."""
        heads: dict[str, list[int]] = {}
        changes: dict[str, Change] = {}
        for place in places:
            if place.head is None:
                changes[place.site] = Change(0.0, values[place.site][origin], [position])
            else:
                heads.setdefault(place.site, []).append(place.head)
        for site, chosen in heads.items():
            changes[site] = Change(0.0, values[site][chosen][:, [origin]], [position], chosen)
        return Watch(changes=changes)

    def _change(self, site: str) -> Change:
        return Change(0.0, self.read.values[site][self.origin], [self.last])
