"""Models whose reason is known by construction: `why` names it, in every kind of family."""

from __future__ import annotations

import re
from typing import Any

import pytest

from glassformer.ground.errors import InputError
from glassformer.see.explain.question import ask, read_answer
from glassformer.see.explain.word_effects import word_checks
from tests.see import planted

FAMILIES = (
    "llama", "qwen2", "qwen3", "gpt2",  # biases, norms of queries and keys, learned positions
    "gemma2", "gemma3_text", "olmo2",  # soft caps, windows, norms after a block's parts
    "mixtral", "gpt_oss",  # experts, sinks
    "granite", "cohere2",  # multipliers, parallel parts
)  # fmt: skip
PAIRS, ENCODERS = ("t5", "bart"), ("bert", "distilbert")
TURNED = tuple(
    family for family in FAMILIES if family != "cohere2"
)  # whose heads see the token before as `planted` knows it

pytestmark = [pytest.mark.every_family, pytest.mark.usefixtures("one_thread")]


def explained(model: Any, text: str, answer: str, word: str, instead: tuple[str, ...], also: tuple[str, ...] = ()) -> Any:
    """An explanation that names a word before all others, and the planted head, which restores all of the lead."""
    why = model.explain(text, tokens=1, **({"raw": True} if model.decoder_start_token is None else {}))
    assert why.answer.text.strip() == answer
    first, *others = [one.text for one in why.words[: why.named]]
    assert first == word
    assert set(others) <= set(also)
    best = why.words[0].best_exchange
    assert best is not None
    assert (best.text, best.outcome) in [(other, "another") for other in instead]
    (part,) = why.carried.parts
    assert (part.block, part.head) == (1, planted.HEAD)
    assert part.restored == pytest.approx(1, abs=0.02)
    assert why.carried.settled == 1
    assert part.attention > 0.1  # soft caps and norms of queries and keys keep it from one
    assert [check.holds for check in why.checks[-2:]] == [True, True]  # of the parts
    return why


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_looked_up(family: str) -> None:
    """Nothing but the country says which city; "is" asks for one at all."""
    subjects = planted.SUBJECTS
    why = explained(planted.look_up(family), "the capital of France is", "Paris", "France", (*subjects,), ("is",))
    best = why.words[0].best_exchange
    assert best.answer.strip() == subjects[best.text]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_word_that_is_not_the_reason_fails_the_check(family: str) -> None:
    """The answer falls behind where the country is exchanged, which happens among the words around another one."""
    reading = planted.look_up(family).read("today the capital of France is", raw=True)
    with read_answer(reading, -1) as text:
        question = ask(text, text.position, None, None)
        words = {word.text: word for word in text.words() if word.origin != "template"}
        rest = [words[name] for name in ("today", "the", "capital", "of", "is")]
        right = word_checks(question, [words["France"], *rest], 1)
        wrong = word_checks(question, [words["capital"], words["France"], *rest], 1)
    assert [check.holds for check in right] == [True, True]
    assert [check.holds for check in wrong] == [False, False]
    assert "a third of them at a time" in wrong[-1].claim
    assert re.search(r"stays ahead: in [0-4] of 6 texts", wrong[-1].claim)


@pytest.mark.parametrize("family", PAIRS)
def test_what_is_looked_up_in_a_source(family: str) -> None:
    """Translation and the like: cross-attention finds the source's word."""
    subjects = planted.SUBJECTS
    why = explained(planted.look_up(family), "the capital of France is", "Paris", "France", (*subjects,))
    assert why.tokens[why.words[0].positions[0]].strip() == "France"
    assert why.carried.parts[0].name == "cross-attention's head 2 of block 1"
    assert why.words[0].best_exchange.answer.strip() == subjects[why.words[0].best_exchange.text]


@pytest.mark.parametrize("family", ENCODERS)
def test_what_fills_a_gap(family: str) -> None:
    subjects = planted.SUBJECTS
    why = explained(
        planted.look_up(family, head="masked"), "the capital of France is <mask> today", "Paris", "France", (*subjects,)
    )
    assert why.carried.to == "the gap"
    assert "brought to the gap mostly by head 2 of block 1" in why.sentences[2]
    assert why.tokens[why.position] == "<mask>"
    assert why.tokens[why.words[0].positions[0]].strip() == "France"
    assert "<mask>" not in [word.text for word in why.words]


@pytest.mark.parametrize("family", ENCODERS)
def test_what_labels_a_text(family: str) -> None:
    model = planted.look_up(family, head="sequence")
    why = model.explain("the capital of France is today")
    assert why.answer.text == "Paris"
    assert [word.text for word in why.words[: why.named]] == ["France"]
    assert why.words[0].best_exchange.answer == planted.SUBJECTS[why.words[0].best_exchange.text]
    (part,) = why.carried.parts
    assert (part.name, part.restored) == ("head 2 of block 1", pytest.approx(1, abs=0.02))
    assert "brought to the first token mostly by head 2 of block 1" in why.sentences[2]
    assert [check.holds for check in why.checks] == [True] * 4
    other = model.explain("the capital of France is today", token="Rome", against="Madrid")
    assert (other.answer.text, other.against.text, other.draw.rank > 1) == ("Rome", "Madrid", True)
    with pytest.raises(InputError, match="no label 'Rom'.*'Rome'"):
        model.explain("the capital of France is today", token="Rom")


@pytest.mark.parametrize("family", ENCODERS)
def test_where_an_answer_stands_in_a_text(family: str) -> None:
    """The question's country says which of the text's cities it is; of others as many stand there."""
    model, text = planted.find(family), "tick Rome today Paris tock Madrid and Cairo"
    why = model.explain("the capital of France", pair=text)
    assert why.answer.text == "Paris"
    assert [(word.text, word.origin) for word in why.words[: why.named]] == [("France", "prompt")]
    best = why.words[0].best_exchange
    assert best.answer == planted.SUBJECTS[best.text]
    assert "Paris" not in [word.text for word in why.words]  # without it there is no such answer
    (part,) = why.carried.parts
    assert (part.name, part.restored) == ("head 2 of block 1", pytest.approx(1, abs=0.02))
    assert "brought to the passages' ends mostly by head 2 of block 1" in why.sentences[2]
    other = model.explain("the capital of France", pair=text, token="Rome", against="Madrid")
    assert (other.answer.text, other.against.text, other.draw.rank > 1) == ("Rome", "Madrid", True)
    assert {"Rome", "Madrid"}.isdisjoint(word.text for word in other.words)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("family", ENCODERS)
def test_why_two_texts_are_similar(family: str, pooling: str) -> None:
    """What a text is about is its country, and that of the other is the same."""
    model = planted.look_up(family, head="masked", pooling=pooling)
    why = model.explain("the capital of France is", pair="today tick in France")
    assert {(word.text, word.origin) for word in why.words[: why.named]} == {("France", "prompt"), ("France", "pair")}
    assert [why.tokens[position].strip() for word in why.words[:2] for position in word.positions] == ["France", "France"]
    assert why.checks[-1].lead > why.lead > why.similarity.empty
    assert why.checks[-1].holds


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_copied(family: str) -> None:
    why = explained(planted.copy(family), "the capital of Italy is", "Italy", "Italy", (*planted.SUBJECTS,), ("is",))
    best = why.words[0].best_exchange
    assert best.answer.strip() == best.text


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_counted(family: str) -> None:
    """Where no word is a tick the answer is zero."""
    why = explained(planted.count(family), "tick the tick of tick in equals", "three", "tick", ("tock", "tack", "tuck"))
    assert why.words[0].best_exchange.answer.strip() == "zero"
    assert why.words[0].positions == (0, 2, 4)


@pytest.mark.parametrize("family", TURNED)
def test_what_followed_before(family: str) -> None:
    """After "Ann" comes what came after it before. Another name in all places of "Ann" would do as well."""
    names = tuple(name for name in planted.CLASSES["name"] if name != "Bob")
    why = explained(planted.induction(family), "today Ann Bob and Cid Dan today Ann", "Bob", "Bob", names, ("Ann",))
    best = why.words[0].best_exchange
    assert best.answer.strip() == best.text
