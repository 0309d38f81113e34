"""What each word is worth to a lead: what the lead loses without it, and with others in its place.

Shapes: logits (vocabulary,).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import numpy as np

from glassformer.page.format import pluralize
from glassformer.see.explain.explanation import Check, Exchange, WordEffect, quoted_list
from glassformer.see.explain.question import FULL, Question
from glassformer.see.explain.texts import ReadText, best_tokens
from glassformer.see.explain.words import MAX_WORDS, Word, exchanged, exchanges, without
from glassformer.see.tokens import token_text
from glassformer.see.view import Floats

PARTS = 3  # of the other words, one of which is exchanged at a time to check that they matter little
DRAWS = 2  # of such parts


def word_effects(question: Question) -> list[tuple[Word, WordEffect]]:
    """What each word is worth: all are left out and exchanged once, and those that matter most a few times more."""
    tokenizer, effort = question.reading.model.tokenizer, question.effort
    words = question.text.words()[-MAX_WORDS:]  # of more, the later ones
    words = [word for word in words if len(without(question.ids, [word])) > 0]
    others = instead(question.text, words, effort.exchanges)
    texts = [without(question.ids, [word]) for word in words if effort.leave_out or word not in others]
    texts += [exchanged(question.ids, {word: found[0]}, tokenizer) for word, found in others.items()]
    logits = question.text.after(texts)
    left_out = {
        word: question.lead.of(next(logits)) - question.whole for word in words if effort.leave_out or word not in others
    }
    tried = {word: [_exchange(question, word, found[0], next(logits))] for word, found in others.items()}
    strongest = sorted(tried, key=lambda word: min(left_out.get(word, 0.0), tried[word][0].change))[: effort.words]
    more = [(word, token) for word in strongest for token in others[word][1:]]
    texts = [exchanged(question.ids, {word: token}, tokenizer) for word, token in more]
    for (word, token), scores in zip(more, question.text.after(texts), strict=True):
        tried[word].append(_exchange(question, word, token, scores))
    return [
        (word, WordEffect(word.text, word.origin, word.positions, left_out.get(word), tuple(tried.get(word, ()))))
        for word in words
    ]


def instead(text: ReadText, words: Sequence[Word], count: int) -> dict[Word, list[int]]:
    """For each word that can be exchanged, at most `count` tokens to put in its place.

    They are among what the model expects there. Where nothing stands before a word, or its first token is but a piece of it,
    that says little; then what the model lists beside it is looked at first: "Paris, Paris," goes on with other cities.
    """
    words = [word for word in words if word.origin != "template"]
    if unknown := [word for word in words if word.first not in text.others]:
        text.others |= _found_beside(text, unknown)
    return {word: found[:count] for word in words if (found := text.others[word.first])}


def _found_beside(text: ReadText, words: Sequence[Word]) -> dict[int, list[int]]:
    """What could stand in the place of each word, by its first position."""
    reading, ids, tokenizer = text.reading, text.ids_with_words, text.reading.model.tokenizer
    begin = min(word.first for word in text.words() if word.origin != "template")
    listed = [word for word in words if word.first == begin or len(word.places[0]) > 1]
    if not reading.model.writes or reading.source is not None:
        listed = []
    special = ids[: next((at for at, token in enumerate(reading.tokens) if not token.special), 0)]
    lists = [(*special, *tokenizer.encode(f"{word.text}, {word.text},", add_special_tokens=False)) for word in listed]
    beside = {word: best_tokens(logits) for word, logits in zip(listed, text.after(lists), strict=True)}
    likely = {word: [*beside.get(word, ()), *_with_blank_of(text, word)] for word in words}
    return {word.first: exchanges(word, likely[word], reading, ids, FULL.exchanges) for word in words}


def _with_blank_of(text: ReadText, word: Word) -> list[int]:
    """What is expected in a word's place, with a blank before it as the word has."""
    tokenizer = text.reading.model.tokenizer
    blank = token_text(tokenizer, text.ids_with_words[word.first])[:1].isspace()
    return [token for token in text.expected(word) if token_text(tokenizer, token)[:1].isspace() == blank]


def _exchange(question: Question, word: Word, token: int, logits: Floats) -> Exchange:
    text, tokenizer, best = question.text, question.reading.model.tokenizer, int(logits.argmax())
    return Exchange(
        token_text(tokenizer, token).strip(), token, question.lead.of(logits) - question.whole,
        text.said(best, exchanged(question.ids, {word: token}, tokenizer)), best, float(text.probabilities(logits)[best]),
        text.outcome(best, question.token),
    )  # fmt: skip


def word_checks(question: Question, words: Sequence[Word], named: int) -> tuple[Check, ...]:
    """Whether the answer falls behind without the named words, and whether they keep it ahead among other words."""
    chosen, tokenizer = words[:named], question.reading.model.tokenizer
    if not chosen:
        return ()
    others = {word: tokens[0] for word, tokens in instead(question.text, words[named:], 1).items()}
    groups = word_groups(list(others))
    names = quoted_list([word.text for word in chosen])
    texts = [without(question.ids, chosen) or question.ids[-1:]]
    texts += [exchanged(question.ids, {word: others[word] for word in group}, tokenizer) for group in groups]
    left, *around = [question.lead.of(logits) for logits in question.text.after(texts)]
    checks = [Check(f"without {names}, the answer falls behind", left, left <= 0)]
    if groups:
        put = ", ".join(f"{word.text} → {token_text(tokenizer, other).strip()}" for word, other in others.items())
        share = "a third of them" if len(others) > PARTS else "one of them"
        kept, texts_read = sum(lead > 0 for lead in around), pluralize(len(around), "text")
        claim = f"with other words around {names}, {share} at a time ({put}), it stays ahead: in {kept} of {texts_read}"
        enough = 1 - 1 / min(PARTS, len(others))  # of the texts: all but those in which a certain word is exchanged
        checks.append(Check(claim, median(around), kept > enough * len(around)))
    return tuple(checks)


def word_groups(words: Sequence[Word]) -> list[list[Word]]:
    """Thirds of some words, drawn a few times. All of them exchanged at once would seldom leave a sentence."""
    generator, count = np.random.default_rng(0), min(PARTS, len(words))
    orders = [generator.permutation(len(words)).tolist() for _ in range(DRAWS if len(words) > PARTS else 1)]
    return [[words[index] for index in order[part::count]] for order in orders for part in range(count)]
