"""How an explanation is found: words are taken away, parts are put back, and what is claimed is checked.

1. Each word is left out, and the strongest ones are exchanged for others that the model expects in their place. A word is
   worth what the lead loses either way: leaving a word out may only have broken a sentence.
2. The best exchange gives another text. Into its pass each head's and each MLP's value at the last token is put from the
   first text, one at a time, then the best together; and the whole stream there, layer by layer.
3. What is named is checked both ways: kept alone, the answer must stay; taken away, it must go.

Shapes: logits (vocabulary,); values (heads, 1, head_size) or (1, hidden).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, TypeAlias, TypeVar, Unpack

import numpy as np

from glassformer.engine.protocol import Feed, Row, Want, common_prefix
from glassformer.ground.candidates import log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError, NotNumbers
from glassformer.ground.operations import about, operation
from glassformer.ground.progress import Progress
from glassformer.ground.sites import Watch
from glassformer.see.activations import Activations
from glassformer.see.attribution import AgainstArgument, PositionArgument, TokenArgument, resolve_token_id, runner_up
from glassformer.see.explain.explanation import (
    Carried,
    Check,
    Draw,
    Exchange,
    Explanation,
    PartEffect,
    WordEffect,
    by_worth,
    quoted_list,
    sentences,
)
from glassformer.see.explain.telling import telling_token
from glassformer.see.explain.words import LIKELY, Word, exchanged, exchanged_all, exchanges, token_text, without, words_of
from glassformer.see.patching.pair import PatchedRun, ReadPair, TextPair, read_pairs
from glassformer.see.patching.view import AnswerToken
from glassformer.see.protocols import ModelLike, RunLike
from glassformer.see.tokens import find_token
from glassformer.see.view import Floats
from glassformer.text.prompt import Prompt, PromptKeywords, PromptOptions

BATCH_TOKENS = 1024  # that go through in one pass
MAX_WORDS = 64  # that are left out one by one; of more, the later ones are
TRIED = 6  # words for which exchanges are tried
PARTS = 5  # that are named at the most
STAGES = 3  # that the progress counts: the words, what carries them, the checks
ENOUGH = 0.9  # of the lead's way back
Part: TypeAlias = tuple[int, int | None]  # a block and a head; None: the MLP
Name = TypeVar("Name", bound=Hashable)


@dataclass
class Question:
    """A token after a position of a text, and the one that it is held against."""

    reading: Activations
    position: int
    token: int
    against: int
    logits: Floats = field(repr=False)

    @property
    def ids(self) -> tuple[int, ...]:
        return self.reading.ids[: self.position + 1]

    def lead(self, logits: Floats) -> float:
        """In bits."""
        return float(logits[self.token] - logits[self.against]) / math.log(2)

    @cached_property
    def whole(self) -> float:
        return self.lead(self.logits)


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
    progress: Progress | None = None,
    **prompt_options: Unpack[PromptKeywords],
) -> Explanation:
    """Say why the model answers as it does: the words that decide, what carries them, and whether that holds."""
    PromptOptions.of(prompt_options, explain_answer)
    run = model.watch(prompt, max_new_tokens=tokens, **prompt_options)
    return explain_run(run, token, against, progress=progress)


@operation(name="explain")
def explain_run(
    run: RunLike,
    token: int | str | None = None,
    against: int | str | None = None,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Why a run wrote one of its tokens: the one named, or the one that tells most."""
    reading = Activations.of_run(run)
    written = [token_text(reading.model.tokenizer, step.id) for step in run.steps]
    index = telling_token(reading) if token is None else find_token(token, written)
    position = reading.prompt_length + index - 1
    return explain(reading, position, run.steps[index].id, against, contents=run.contents, progress=progress)


@operation()
def explain(
    reading: Activations,
    position: PositionArgument = -1,
    token: TokenArgument = None,
    against: AgainstArgument = None,
    *,
    contents: Annotated[Sequence[str] | None, about("The texts of the prompt's messages: the rest is its template.")] = None,
    progress: Progress | None = None,
) -> Explanation:
    """Say why a token comes next: the words that decide, what carries them, and whether that holds.

    A token that is named need not be the best; `against` is by default the runner-up, the best of the others.
    """
    question, expected = ask(reading, position, token, against)
    found = word_effects(question, expected, contents)
    if progress is not None:
        progress(1, STAGES)
    order, named = by_worth([effect for _, effect in found], question.whole)
    found = [found[index] for index in order]
    measured = tuple(effect for _, effect in found)
    telling = [(word, effect) for word, effect in found[:named] if effect.best_exchange is not None]
    carried = None
    if telling and question.whole > 0:
        carried = carried_by(question, *min(telling, key=lambda pair: pair[1].best_exchange.weight))  # type: ignore[union-attr]
    if progress is not None:
        progress(2, STAGES)
    checks = (*word_checks(question, expected, [word for word, _ in found], named), *(carried[1] if carried else ()))
    if progress is not None:
        progress(STAGES, STAGES)
    tokenizer = reading.model.tokenizer
    probabilities = np.exp(log_softmax(question.logits))
    best = int(question.logits.argmax())
    rank = int((question.logits > question.logits[question.token]).sum()) + 1
    draw = None
    if rank > 1 and token is not None:
        draw = Draw(token_text(tokenizer, best), float(probabilities[best]), rank)
    answer, rival = (AnswerToken(chosen, token_text(tokenizer, chosen)) for chosen in (question.token, question.against))
    said = sentences(answer.text, rival.text, question.whole, draw, measured, named, carried[0] if carried else None)
    return Explanation(
        reading.model.name, question.position, reading.texts[: question.position + 1], answer,
        float(probabilities[question.token]), rival, question.whole, draw, measured, named,
        carried[0] if carried else None, checks, said,
    )  # fmt: skip


def ask(
    reading: Activations, position: int | str, token: int | str | None, against: int | str | None
) -> tuple[Question, dict[int, list[int]]]:
    """The question, and what the model expects most in the place of each token."""
    if not reading.model.writes or reading.source is not None:
        raise InputError(f"{reading.model.name} does not go on with its text, so no token of it can be explained.")
    at = find_token(position, reading.texts)
    expected: dict[int, list[int]] = {}
    logits = None
    for chunk in replace(reading, ids=reading.ids[: at + 1]).chunks(scored=True):
        assert chunk.scores is not None
        likely = np.argpartition(chunk.scores, -LIKELY, axis=1)[:, -LIKELY:] if chunk.scores.shape[1] > LIKELY else None
        for row, scores in enumerate(chunk.scores):
            best = np.arange(len(scores)) if likely is None else likely[row]
            expected[chunk.start + row + 1] = best[np.argsort(-scores[best])].tolist()
            logits = scores
    assert logits is not None
    logits = logits.copy()
    if not np.isfinite(logits[logits > -np.inf]).all():
        raise NotNumbers(
            "the model's logits are not numbers (NaN), so nothing can be explained. Look for what changed them."
        )
    chosen = resolve_token_id(reading.model, token, logits)
    rival = runner_up(logits, chosen) if against is None else resolve_token_id(reading.model, against, logits)
    if rival == chosen:
        raise InputError("a token has no lead over itself. Hold it against another one.")
    return Question(reading, at, chosen, rival, logits), expected


# Words ----------------------------------------------------------------------------------------------------------


def word_effects(
    question: Question, expected: Mapping[int, Sequence[int]], contents: Sequence[str] | None
) -> list[tuple[Word, WordEffect]]:
    """What each word is worth: all are left out, and the strongest are exchanged."""
    reading, tokenizer = question.reading, question.reading.model.tokenizer
    words = words_of(reading, question.position + 1, contents)[-MAX_WORDS:]
    words = [word for word in words if len(without(question.ids, [word])) > 0]
    left_out = [question.lead(logits) - question.whole for logits in read_rows(question, [[word] for word in words])]
    order = sorted(range(len(words)), key=lambda index: left_out[index])
    tried = [(index, other) for index in order[:TRIED] for other in exchanges(words[index], expected, reading)]
    texts = [exchanged(question.ids, words[index], other, tokenizer) for index, other in tried]
    found: dict[int, list[Exchange]] = {}
    for (index, other), logits in zip(tried, read_texts(question, texts), strict=True):
        logs, best = log_softmax(logits), int(logits.argmax())
        exchange = Exchange(
            token_text(tokenizer, other).strip(), question.lead(logits) - question.whole, token_text(tokenizer, best),
            float(np.exp(logs[best])),
        )  # fmt: skip
        found.setdefault(index, []).append(exchange)
    return [
        (word, WordEffect(word.text, word.origin, word.positions, left_out[index], tuple(found.get(index, ()))))
        for index, word in enumerate(words)
    ]


def word_checks(
    question: Question, expected: Mapping[int, Sequence[int]], words: Sequence[Word], named: int
) -> tuple[Check, ...]:
    """Whether the named words keep the answer ahead among other words, and whether it falls behind without them."""
    chosen, reading = words[:named], question.reading
    others = [(word, other) for word in words[named:] for other in exchanges(word, expected, reading)[:1]]
    if not chosen:
        return ()
    names = quoted_list([word.text for word in chosen])
    texts = [without(question.ids, chosen)]
    if others:
        texts.append(exchanged_all(question.ids, dict(others), reading.model.tokenizer))
    leads = [question.lead(logits) for logits in read_texts(question, texts)]
    checks = [Check(f"without {names}, the answer falls behind", leads[0], leads[0] <= 0)]
    if others:
        instead = ", ".join(f"{word.text} → {token_text(reading.model.tokenizer, other).strip()}" for word, other in others)
        checks.append(Check(f"with other words around {names} ({instead}), it stays ahead", leads[1], leads[1] > 0))
    return tuple(checks)


def read_rows(question: Question, left_out: Sequence[Sequence[Word]]) -> Iterator[Floats]:
    """The logits without some words each time."""
    return read_texts(question, [without(question.ids, words) or question.ids[-1:] for words in left_out])


def read_texts(question: Question, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
    """The logits after each text; what it begins with in common with the question's is read once."""
    executor = question.reading.model.executor
    whole = executor.open(None)
    try:
        executor.run([Feed(whole, question.ids, Want.NONE)])
        batch: list[Sequence[int]] = []
        size = 0
        for text in texts:
            batch.append(text)
            size += len(text) - _shared(question, text)
            if size >= BATCH_TOKENS:
                yield from _run(question, whole, batch)
                batch, size = [], 0
        if batch:
            yield from _run(question, whole, batch)
    finally:
        executor.close(whole)


def _shared(question: Question, text: Sequence[int]) -> int:
    return min(common_prefix(question.ids, text), len(text) - 1)


def _run(question: Question, whole: Row, texts: Sequence[Sequence[int]]) -> list[Floats]:
    executor = question.reading.model.executor
    feeds = [Feed(executor.fork(whole, shared), text[shared:]) for text in texts for shared in [_shared(question, text)]]
    try:
        return [output.host().copy() for output in executor.run(feeds)]
    finally:
        for feed in feeds:
            executor.close(feed.row)


# Parts ----------------------------------------------------------------------------------------------------------


def carried_by(question: Question, word: Word, effect: WordEffect) -> tuple[Carried, tuple[Check, ...]] | None:
    """What brings the word's difference to the last token: parts of one text put into the pass of the other."""
    reading, model = question.reading, question.reading.model
    best = effect.best_exchange
    if best is None or best.change >= 0 or question.position in word.positions:
        return None
    blank = " " if token_text(model.tokenizer, reading.ids[word.places[0][0]])[:1].isspace() else ""
    (other,) = model.tokenizer.encode(blank + best.text, add_special_tokens=False)[:1]
    first = replace(reading, ids=question.ids)
    second = replace(reading, ids=exchanged(question.ids, word, other, model.tokenizer))
    blocks = range(model.blueprint.blocks)
    sites = [f"blocks.{block}.{part}" for block in blocks for part in ("attention.heads", "mlp.update", "residual")]
    sites = [site for site in sites if site in model.blueprint.sites]
    with read_pairs([TextPair(first, second, -1, aligned=True)], sites) as (forward,):
        search = PartSearch(question, forward)
        parts = search.best_parts()
        settled = search.settled()
    with read_pairs([TextPair(second, first, -1, aligned=True)], sites) as (backward,):
        taken = PartSearch(question, backward).lead_with([part.place for part in parts])
    attention = search.attention(word, parts)
    carried = Carried(
        word.text, best.text, best.answer, search.there,
        tuple(PartEffect(*part.place, part.restored, part.together, attention.get(part.place)) for part in parts),
        settled, None,
    )  # fmt: skip
    if not parts:
        return carried, ()
    names = "the named parts" if len(parts) > 1 else carried.parts[0].name
    put = search.there + parts[-1].together * (question.whole - search.there)
    checks = (
        Check(f"with “{best.text}”, but {names} as in the text, the answer is ahead", put, put > 0),
        Check(
            f"in the text, but {names} as with “{best.text}”, the lead is at most half", taken, taken <= question.whole / 2
        ),
    )
    return carried, checks


@dataclass(frozen=True)
class FoundPart:
    place: Part
    restored: float
    together: float


class PartSearch:
    """The second text of a pair, with parts of the first one's last token put into it."""

    def __init__(self, question: Question, read: ReadPair) -> None:
        self.question, self.read = question, read
        self.last = len(read.pair.second.ids) - 1
        self.here, self.there = (question.lead(scores) for scores in read.scores)

    def restored(self, lead: float) -> float:
        return (lead - self.there) / (self.here - self.there) if self.here != self.there else 0.0

    def best_parts(self) -> list[FoundPart]:
        """The parts that restore most, each alone; then together, until that is enough."""
        alone = dict(self._leads({place: [place] for place in self.places()}))
        order = sorted(alone, key=lambda place: -self.restored(alone[place]))[:PARTS]
        together = dict(self._leads({count: order[:count] for count in range(1, len(order) + 1)}))
        found: list[FoundPart] = []
        for count, place in enumerate(order, 1):
            found.append(FoundPart(place, self.restored(alone[place]), self.restored(together[count])))
            if found[-1].together >= ENOUGH:
                break
        return found

    def places(self) -> list[Part]:
        values, blocks = self.read.values, range(self.question.reading.model.blueprint.blocks)
        heads = [(block, head) for block in blocks for head in range(len(values.get(f"blocks.{block}.attention.heads", ())))]
        return [*heads, *((block, None) for block in blocks if f"blocks.{block}.mlp.update" in values)]

    def lead_with(self, places: Sequence[Part]) -> float:
        return next((lead for _, lead in self._leads({0: places})), self.there) if places else self.there

    def settled(self) -> int | None:
        """The block from which on the last token's stream alone brings the answer."""
        sites = {block: f"blocks.{block}.residual" for block in range(self.question.reading.model.blueprint.blocks)}
        runs = [
            PatchedRun(block, Watch(changes={site: self._change(site)}), self.last, block) for block, site in sites.items()
        ]
        shares = {block: self.restored(self.question.lead(scores)) for block, scores, _ in self.read.patched(runs)}
        late = [
            block for block in sorted(shares) if all(shares[later] >= ENOUGH for later in sorted(shares) if later >= block)
        ]
        return late[0] if late else None

    def attention(self, word: Word, parts: Sequence[FoundPart]) -> dict[Part, float]:
        """What each head gave to the word."""
        reading = self.question.reading
        sites = {
            block: f"blocks.{block}.attention.pattern" for (block, head), _, _ in map(_fields, parts) if head is not None
        }
        sites = {block: site for block, site in sites.items() if site in reading.model.blueprint.sites}
        if not sites:
            return {}
        patterns = reading.values_at([self.question.position], *sites.values())
        places = [part.place for part in parts if part.place[0] in sites and part.place[1] is not None]
        positions = list(word.positions)
        return {place: float(patterns[sites[place[0]]][place[1], 0, positions].sum()) for place in places}

    def _leads(self, sets: Mapping[Name, Sequence[Part]]) -> Iterator[tuple[Name, float]]:
        runs = [
            PatchedRun(name, self._watch(places), self.last, min(block for block, _ in places))
            for name, places in sets.items()
        ]
        return ((name, self.question.lead(scores)) for name, scores, _ in self.read.patched(runs))

    def _watch(self, places: Sequence[Part]) -> Watch:
        heads: dict[int, list[int]] = {}
        changes: dict[str, Change] = {}
        for block, head in places:
            if head is None:
                site = f"blocks.{block}.mlp.update"
                changes[site] = self._change(site)
            else:
                heads.setdefault(block, []).append(head)
        for block, chosen in heads.items():
            site = f"blocks.{block}.attention.heads"
            changes[site] = Change(0.0, self.read.values[site][chosen][:, [-1]], [self.last], chosen)
        return Watch(changes=changes)

    def _change(self, site: str) -> Change:
        return Change(0.0, self.read.values[site][-1], [self.last])


def _fields(part: FoundPart) -> tuple[Part, float, float]:
    return part.place, part.restored, part.together
