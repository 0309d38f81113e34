"""An explanation's numbers are those of texts read anew, in every family; its words say what they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from glassformer.engine.protocol import Feed
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch
from glassformer.see.explain.compute import ask, explain, read_texts
from glassformer.see.explain.explanation import Carried, Draw, Exchange, PartEffect, WordEffect, by_worth, sentences
from glassformer.see.explain.telling import telling_token
from glassformer.see.explain.words import Word, exchanged, without, words_of
from tests.parity.configs import DECODERS
from tests.see.models import EXECUTORS, TEXT, both, encoder

FRANCE = WordEffect("France", "prompt", (5,), -3.4, (Exchange("Italy", -5.0, " Rome", 0.9),))
CAPITAL = WordEffect("capital", "prompt", (3,), -1.0, ())


def scores(reading: Any, ids: tuple[int, ...], watch: Watch | None = None) -> Any:
    """Of what follows a text, read from its beginning in a row of its own."""
    executor = reading.model.executor
    row = executor.open(None)
    try:
        return executor.run([Feed(row, ids, watch=watch)])[0].host().copy()
    finally:
        executor.close(row)


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.every_family
@pytest.mark.parametrize("family", DECODERS)
def test_leads_are_those_of_texts_without_the_word_and_with_another(family: str, executor: str) -> None:
    reading = both(family, executor).reading(f"{TEXT} and the dog")
    view = explain(reading)
    question, _ = ask(reading, -1, None, None)
    assert view.answer.id == int(scores(reading, reading.ids).argmax())
    assert view.lead == pytest.approx(question.lead(scores(reading, reading.ids)), abs=1e-4)
    for word in view.words:
        places = tuple((position,) for position in word.positions)
        left = without(reading.ids, [Word(word.text, word.origin, places)])
        assert word.left_out == pytest.approx(question.lead(scores(reading, left)) - view.lead, abs=1e-3), word.text
    texts = [reading.ids[:3], (*reading.ids[:2], *reading.ids[3:]), reading.ids]
    for text, logits in zip(texts, read_texts(question, texts), strict=True):
        np.testing.assert_allclose(logits, scores(reading, text), atol=1e-4)


@pytest.mark.every_family
@pytest.mark.parametrize("family", DECODERS)
def test_a_part_restores_what_its_value_in_the_other_text_brings_back(
    family: str, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.see.explain import compute

    reading = both(family, executor).reading(f"{TEXT} and the dog")
    question, expected = ask(reading, -1, None, None)
    word = next(word for word in words_of(reading, len(reading)) if word.text == "cat")
    other = next(token for token in expected[word.positions[0]] if token not in reading.ids)
    effect = WordEffect(word.text, "prompt", word.positions, -1.0, (Exchange("other", -1.0, "", 1.0),))
    monkeypatch.setattr(reading.model.tokenizer, "encode", lambda text, **_: [other], raising=False)
    carried, checks = compute.carried_by(question, word, effect) or (None, ())
    assert carried is not None
    ids = exchanged(question.ids, word, other, reading.model.tokenizer)
    there, here = question.lead(scores(reading, ids)), question.lead(scores(reading, question.ids))
    assert carried.lead == pytest.approx(there, abs=1e-3)
    values = reading.values("blocks.*.attention.heads", "blocks.*.mlp.update")
    last, changes = len(ids) - 1, {}
    for part in carried.parts:
        if part.head is None:
            change = {f"blocks.{part.block}.mlp.update": Change(0.0, values[f"blocks.{part.block}.mlp.update"][-1], [last])}
        else:
            site = f"blocks.{part.block}.attention.heads"
            change = {site: Change(0.0, values[site][[part.head]][:, [-1]], [last], [part.head])}
        alone = question.lead(scores(reading, ids, Watch(changes=change)))
        assert part.restored * (here - there) == pytest.approx(alone - there, abs=2e-3), part.name
        changes.update({site: value for site, value in change.items() if site not in changes})
    assert all(check.holds in (True, False) for check in checks)


def test_words_are_taken_with_all_their_places_and_the_template_is_one() -> None:
    reading = both("qwen3", "cpu").reading("the cat sat on the mat")
    words = {word.text: word for word in words_of(reading, len(reading))}
    assert list(words) == ["the", "cat", "sat", "on", "mat"]
    assert len(words["the"].places) == 2
    told = words_of(reading, len(reading), ["cat sat"])
    assert [word.text for word in told] == ["cat", "sat", "the chat template"]
    assert told[-1].origin == "template"
    assert without(reading.ids, [words["the"], words["mat"]]) == tuple(
        token
        for position, token in enumerate(reading.ids)
        if position not in (*words["the"].positions, *words["mat"].positions)
    )


def test_a_token_that_the_prompt_did_not_have_is_explained() -> None:
    model = both("qwen3", "cpu").model
    reading = model.read_ids(model.tokenizer("the cat sat")["input_ids"], model.tokenizer("the cat mat")["input_ids"])
    index = telling_token(reading)
    assert reading.texts[reading.prompt_length + index].strip() == "m"  # of "mat"
    with pytest.raises(InputError, match="no answer"):
        telling_token(model.read("the cat"))


def test_what_cannot_be_explained_is_said() -> None:
    reading = both("qwen3", "cpu").reading()
    with pytest.raises(InputError, match="no lead over itself"):
        explain(reading, -1, 5, 5)
    with pytest.raises(InputError, match="does not go on"):
        explain(encoder("bert", "base").reading())


class TestSentences:
    def test_a_word_that_decides(self) -> None:
        parts = (PartEffect(23, 4, 0.61, 0.61, 0.4), PartEffect(20, None, 0.3, 0.93, None))
        carried = Carried("France", "Italy", " Rome", -5.0, parts, 24, None)
        said = sentences(" Paris", " Lyon", 3.1, None, (FRANCE, CAPITAL), 1, carried)
        assert said == (
            "Paris led Lyon by 3.1 bits.",
            "“France” decides it: without that word the lead is gone (-3.4). With “Italy” instead the model says Rome.",
            "It is brought to the last token mostly by head 4 of block 23, which looks at “France” with 40.0% "
            "(alone it restores 61% of the lead; 2 parts together 93%), and the answer is there from block 24 on.",
        )

    def test_no_single_word(self) -> None:
        words = (CAPITAL, CAPITAL)
        assert by_worth(words, 8.0) == ([0, 1], 0)
        assert by_worth((CAPITAL, FRANCE), 3.1) == ([1, 0], 1)
        said = sentences("a", "b", 8.0, None, (WordEffect("to", "prompt", (0,), -2.0, ()),), 0, None)
        assert said[1] == (
            "No single word decides: none takes half of the lead with it both left out and exchanged; "
            "leaving “to” out changes it most (-2.0)."
        )
        slight = sentences("a", "b", 8.0, None, (WordEffect("to", "prompt", (0,), -0.1, ()),), 0, None)
        assert slight[1] == "No single word decides: without any one of them the lead stays about the same."

    def test_a_word_that_matters_only_when_it_is_left_out_is_not_passed_over(self) -> None:
        hot = WordEffect("hot", "prompt", (3,), -1.8, (Exchange("heat", 0.5, " cold", 0.9),))
        slight = WordEffect("the", "prompt", (0,), 0.2, (Exchange("a", -0.1, " cold", 0.9),))
        said = sentences(" cold", " cool", 1.1, None, (slight, hot), 0, None)
        assert said[1].endswith("leaving “hot” out changes it most (-1.8).")

    def test_a_near_tie_comes_first_and_so_does_a_draw(self) -> None:
        assert sentences("a", "b", 0.2, None, (), 0, None)[0] == "It was nearly a tie: a led b by only 0.2 bits."
        draw = Draw("c", 0.41, 3)
        said = sentences("a", "b", -1.0, draw, (), 0, None)
        assert said[0] == "The model's own best was c with 41.0%; a was its choice number 3."

    def test_parts_that_carry_little(self) -> None:
        carried = Carried("x", "y", "z", 0.0, (PartEffect(1, 2, 0.08, 0.08, None),), None, None)
        said = sentences("a", "b", 2.0, None, (), 0, carried)
        assert said[-1].startswith("No single part brings it to the last token: the best, head 2 of block 1, restores 8%")


def test_bits_are_powers_of_two() -> None:
    reading = both("llama", "cpu").reading()
    view = explain(reading)
    logits = scores(reading, reading.ids)
    assert view.lead == pytest.approx((logits[view.answer.id] - logits[view.against.id]) / math.log(2), abs=1e-4)
    ratio = view.probability / float(np.exp(logits[view.against.id] - logits.max()) / np.exp(logits - logits.max()).sum())
    assert math.log2(ratio) == pytest.approx(view.lead, abs=1e-4)


def test_the_progress_is_told_stage_by_stage() -> None:
    told: list[tuple[int, int]] = []
    both("llama", "cpu").reading().explain(progress=lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
