"""An explanation's numbers are those of texts read anew, in every family; its words say what they say."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
from glassformer.engine.protocol import Feed
from glassformer.ground.candidates import log_softmax
from glassformer.ground.changes import Change
from glassformer.ground.errors import InputError
from glassformer.ground.sites import Watch
from glassformer.see.activations import Activations
from glassformer.see.explain import operations, telling, texts
from glassformer.see.explain.explanation import (
    Carried,
    Draw,
    Exchange,
    PartEffect,
    Similarity,
    WordEffect,
    by_worth,
    sentences,
)
from glassformer.see.explain.operations import explain
from glassformer.see.explain.parts import MIXERS, PartSearch, ReadCounterpart, carried_by
from glassformer.see.explain.passages import ReadPassages, read_two
from glassformer.see.explain.question import Lead, Question, ask, read_answer
from glassformer.see.explain.similarity import NamedWords, by_share, checks
from glassformer.see.explain.similarity import said as said_of_texts
from glassformer.see.explain.telling import LOOKED_THROUGH, least_expected, owed_to_words, telling_token
from glassformer.see.explain.texts import ReadWhole, read_text
from glassformer.see.explain.word_effects import word_effects, word_groups
from glassformer.see.explain.words import Word, exchanged, exchanges, without, words_of
from glassformer.see.passes import encoder_pass, open_row
from glassformer.see.patching.pair import TextPair, read_pairs
from glassformer.see.patching.view import AnswerToken
from glassformer.see.tokens import token_text
from tests.parity.configs import DECODERS, ENCODERS, HEADS, PAIRS, SEVERAL_STREAMS
from tests.see.models import EXECUTORS, TEXT, both, encoder, folder
from tests.sweeps import mostly_swept

ITALY = Exchange("Italy", 7, -5.0, " Rome", 8, 0.9, "another")
ROME = AnswerToken(8, " Rome")
FRANCE = WordEffect("France", "prompt", (5,), -3.4, (ITALY,))
CAPITAL = WordEffect("capital", "prompt", (3,), -1.0, ())


ONE_STREAM = tuple(family for family in DECODERS if family not in SEVERAL_STREAMS)


@contextmanager
def asked(reading: Any, against: str | None = None) -> Iterator[Question]:
    """Why a text's last token is followed by what the model expects."""
    with read_text(reading, len(reading), len(reading) - 1) as text:
        yield ask(text, len(reading) - 1, None, against)


def probability(logits: Any, token: int) -> float:
    return float(np.exp(log_softmax(logits)[token]))


def scores(reading: Any, ids: tuple[int, ...], watch: Watch | None = None, source: tuple[int, ...] | None = None) -> Any:
    """Of what follows a text, read from its beginning in a row of its own."""
    executor = reading.model.executor
    row = executor.open(source)
    try:
        return executor.run([Feed(row, ids, watch=watch)])[0].host().copy()
    finally:
        executor.close(row)


@pytest.fixture(params=EXECUTORS)
def executor(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", DECODERS)
def test_leads_are_those_of_texts_without_the_word_and_with_another(family: str, executor: str) -> None:
    reading = both(family, executor).reading(f"{TEXT} and the dog")
    with asked(reading) as question:
        lead = question.lead
        assert question.token == int(scores(reading, reading.ids).argmax())
        assert question.whole == pytest.approx(lead.of(scores(reading, reading.ids)), abs=1e-4)
        for word, effect in word_effects(question):
            left = scores(reading, without(reading.ids, [word]))
            assert effect.left_out == pytest.approx(lead.of(left) - question.whole, abs=1e-3), word.text
            for one in effect.exchanges:
                other = scores(reading, exchanged(reading.ids, {word: one.id}, reading.model.tokenizer))
                assert one.change == pytest.approx(lead.of(other) - question.whole, abs=1e-3), (word.text, one.text)
        texts = [reading.ids[:3], (*reading.ids[:2], *reading.ids[3:]), reading.ids]
        for text, logits in zip(texts, question.text.after(texts), strict=True):
            np.testing.assert_allclose(logits, scores(reading, text), atol=1e-4)


@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", ONE_STREAM)
def test_a_part_restores_what_its_value_in_the_other_text_brings_back(family: str, executor: str) -> None:
    reading = both(family, executor).reading(f"{TEXT} and the dog")
    word = next(word for word in words_of(reading, len(reading)) if word.text == "cat")
    with asked(reading) as question:
        other = next(token for token in question.text.likely[word.first] if token not in reading.ids)
        ids = exchanged(question.ids, {word: other}, reading.model.tokenizer)
        rival = int(scores(reading, ids).argmax())
        exchange = Exchange("other", other, -1.0, "", rival, 1.0, "another")
        effect = WordEffect(word.text, "prompt", word.positions, -1.0, (exchange,))
        carried, checks = carried_by(question, word, effect) or (None, ())
        lead = question.lead if rival == question.token else Lead(question.token, rival, alone=True)
    assert carried is not None
    there, here = lead.of(scores(reading, ids)), lead.of(scores(reading, question.ids))
    assert (carried.lead, carried.lead_instead) == (pytest.approx(here, abs=1e-3), pytest.approx(there, abs=1e-3))
    kinds = (".attention.heads", ".attention.update", ".mlp.update")
    sites = [site for site in reading.model.blueprint.sites if site.endswith(kinds)]
    values = reading.values(*sites)
    other_values = reading.model.read(list(ids)).values(*sites)
    for part in carried.parts:
        alone = lead.of(scores(reading, ids, put(values, [part], len(ids) - 1)))
        assert part.restored * (here - there) == pytest.approx(alone - there, abs=2e-3), part.name
    if carried.parts:
        together = lead.of(scores(reading, ids, put(values, carried.parts, len(ids) - 1)))
        assert carried.parts[-1].together * (here - there) == pytest.approx(together - there, abs=2e-3)
        taken = lead.of(scores(reading, question.ids, put(other_values, carried.parts, len(reading) - 1)))
        assert [check.lead for check in checks] == [pytest.approx(together, abs=2e-3), pytest.approx(taken, abs=2e-3)]


def put(values: dict[str, Any], parts: Sequence[PartEffect], position: int) -> Watch:
    """The values of some parts at a text's end, put into another text's pass."""
    changes: dict[str, Change] = {}
    for part in parts:
        if part.head is None:
            site = f"blocks.{part.block}.{'attention' if part.convolution else 'mlp'}.update"
            changes[site] = Change(0.0, values[site][-1], [position])
        else:
            site = f"blocks.{part.block}.attention.heads"
            heads = [one.head for one in parts if one.block == part.block and one.head is not None]
            changes[site] = Change(0.0, values[site][heads][:, [-1]], [position], heads)
    return Watch(changes=changes)


@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", ONE_STREAM)
def test_all_that_the_last_token_takes_up_is_restored_together(family: str) -> None:
    """The stream as it leaves the last block is all that the logits are made of; so are all updates to it."""
    reading = both(family, "cpu").reading(f"{TEXT} and the dog")
    with asked(reading) as question:
        blocks = range(reading.model.blueprint.blocks)
        ids = (
            *reading.ids[:-4],
            question.text.likely[-5][-1],
            *reading.ids[-3:],
        )  # as many: the last one's place is the same
        sites = [
            f"blocks.{b}.{part}"
            for b in blocks
            for part in (*(f"{mixer}.heads" for mixer in MIXERS), "attention.update", "mlp.update", "residual")
        ]
        sites = [site for site in sites if site in reading.model.blueprint.sites]  # a block may have one part alone
        with read_pairs([TextPair(reading, reading.model.read(list(ids)), -1)], sites) as (pair,):
            search = PartSearch(question, pair)
            assert search.restored(search.lead_with(search.places())) == pytest.approx(1, abs=1e-2)
            assert search.arrived[blocks[-1]] == pytest.approx(1, abs=1e-2)
            assert search.lead_with([]) == search.there
            assert search.seen_by_lens == read_from(reading.lens([-1]), question.token)


def read_from(lens: Any, token: int) -> int | None:
    """The block from which on a lens reads a token in its only column; None: not even after the last one."""
    other = [block for block, row in enumerate(lens.predictions[1:]) if row[0].id != token]
    block = max(other, default=-1) + 1
    return block if block < len(lens.predictions) - 1 else None


@pytest.mark.parametrize("family", PAIRS)
def test_leads_behind_a_source_are_those_of_other_sources(family: str) -> None:
    reading = both(family, "cpu").reading(f"{TEXT} and the dog")
    with read_answer(reading, -1) as text:
        question = ask(text, text.position, None, None)
        for word, effect in word_effects(question):
            assert effect.left_out == pytest.approx(lead_behind(question, without(reading.source, [word])), abs=1e-3)
            for one in effect.exchanges:
                other = exchanged(reading.source, {word: one.id}, reading.model.tokenizer)
                assert one.change == pytest.approx(lead_behind(question, other), abs=1e-3)
        other = replace(reading, source=(*reading.source[:-2], reading.source[0], reading.source[-1]))
        sites = [site for site in reading.model.blueprint.sites if site.startswith("blocks.")]
        with read_pairs([TextPair(reading, other, aligned=True)], sites) as (pair,):
            search = PartSearch(question, pair)
            assert search.restored(search.lead_with(search.places())) == pytest.approx(1, abs=1e-2)
            assert search.lead_without(search.places()) == pytest.approx(search.there, abs=1e-2)
            assert {place.mixer for place in search.places()} == {"attention", "cross"}


def lead_behind(question: Question, source: tuple[int, ...]) -> float:
    """How another source changes a lead."""
    reading = question.reading
    with open_row(reading.model.executor, source) as row:
        (output,) = reading.model.executor.run([Feed(row, reading.ids)])
        return question.lead.of(output.host()) - question.whole


@pytest.mark.parametrize("family", ENCODERS)
def test_leads_in_a_gap_are_those_of_other_texts(family: str) -> None:
    model = encoder(family, "masked").model
    reading = model.read("the [MASK] sat on the mat")
    with read_answer(reading, -1) as text:
        question = ask(text, text.position, None, None)
        assert question.position == reading.ids.index(model.tokenizer.mask_token_id)
        for word, effect in word_effects(question):
            ids = without(reading.ids, [word])
            assert effect.left_out == pytest.approx(lead_in_gap(question, ids), abs=1e-4), word.text
            for one in effect.exchanges:
                ids = exchanged(reading.ids, {word: one.id}, model.tokenizer)
                assert one.change == pytest.approx(lead_in_gap(question, ids), abs=1e-4), (word.text, one.text)
        other = model.read("the [MASK] sat on a mat")
        sites = [site for site in model.blueprint.sites if site.endswith(("heads", "update", "residual"))]
        with read_pairs([TextPair(reading, other, aligned=True)], sites) as (pair,):
            search = PartSearch(question, pair)
            assert search.restored(search.lead_with(search.places())) == pytest.approx(1, abs=1e-2)
            assert search.lead_without(search.places()) == pytest.approx(search.there, abs=1e-2)


LABELED = [(family, head) for head in ("sequence", "token", "question") for family in ENCODERS if head in HEADS[family]]
LAST = [("gemma2", "sequence"), ("opt", "sequence")]  # which are labelled at their last token


@pytest.mark.every_mechanism
@pytest.mark.parametrize(("family", "head"), [*LABELED, *LAST])
def test_parts_put_where_a_label_or_an_answer_is_read_restore_it(family: str, head: str) -> None:
    """All updates to the stream there, of one text put into the other's pass, are all that the logits are made of."""
    model = encoder(family, head).model
    if head == "question":
        context = " ".join(["the mat sat on the cat"] * 4)
        text: ReadWhole = ReadPassages(*read_two(model, "the cat sat", context), context)
    else:
        text = ReadWhole(model.read("the cat sat on the mat"), 4 if head == "token" else None)
    text.read()
    question = ask(text, text.position, None, None)
    rival = question.lead.against
    question.lead = Lead(question.token, rival, alone=True)
    word = next(word for word in text.words() if word.origin == "prompt" and not {*word.positions} & {*text.places(rival)})
    ids = list(text.ids)
    ids[word.first] = text.ids[next(one.first for one in text.words() if one.text.casefold() != word.text.casefold())]
    blocks = range(model.blueprint.blocks)
    sites = [f"blocks.{block}.{kind}" for block in blocks for kind in ("attention.heads", "mlp.update", "residual")]
    places = text.places(rival)
    read = ReadCounterpart(text, tuple(ids), sites, places, places)
    there = question.lead.of(text.readout(text.scored(tuple(ids))[0], ids))
    search = PartSearch(question, read)
    assert (search.here, search.there) == (pytest.approx(question.whole, abs=1e-4), pytest.approx(there, abs=1e-4))
    assert places
    assert search.lead_with(search.places()) == pytest.approx(search.here, abs=1e-3)
    assert search.lead_without(search.places()) == pytest.approx(search.there, abs=1e-3)
    changes = {
        f"blocks.{blocks[-1]}.residual": Change(0.0, text.reading.at(f"blocks.{blocks[-1]}.residual")[places], places)
    }
    alone = question.lead.of(text.readout(text.scored(tuple(ids), Watch(changes=changes))[0], ids))
    assert alone == pytest.approx(search.here, abs=1e-3)


def test_where_a_label_is_read_off_all_tokens_parts_are_put_at_all_but_the_words_own(tmp_path: Path) -> None:
    place, _ = folder("modernbert", "sequence")
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "classifier_pooling": "mean"}))
    model = glassformer.load(tmp_path)
    text = ReadWhole(model.read("the cat sat on the mat"), None)
    text.read()
    question = ask(text, text.position, None, None)
    word, other = (next(one for one in text.words() if one.text == name) for name in ("cat", "mat"))
    ids = exchanged(text.ids, {word: text.ids[other.first]}, model.tokenizer)
    there = question.lead.of(text.readout(text.scored(ids)[0], ids))
    sign = 1 if there < question.whole else -1  # so that the exchange takes something off the lead
    question.lead = question.lead if sign > 0 else Lead(question.lead.against, question.token, alone=True)
    exchange = replace(ITALY, id=text.ids[other.first], answer_id=question.lead.against)
    effect = WordEffect("cat", "prompt", word.positions, None, (exchange,))
    carried, _ = carried_by(question, word, effect) or (None, ())
    assert carried is not None
    assert (carried.to, text.places(0)) == ("the other tokens", [])
    places = [position for position in range(len(ids)) if position not in word.positions]
    assert carried.parts
    for part in carried.parts:
        site = f"blocks.{part.block}." + ("mlp.update" if part.head is None else "attention.heads")
        value = text.reading.at(site)
        put_in = value[places] if part.head is None else value[[part.head]][:, places]
        change = Change(0.0, put_in, places, None if part.head is None else [part.head])
        alone = replace(question.lead, alone=True).of(text.readout(text.scored(ids, Watch(changes={site: change}))[0], ids))
        assert alone == pytest.approx(carried.lead_instead + part.restored * (carried.lead - carried.lead_instead), abs=1e-3)


def lead_in_gap(question: Question, ids: tuple[int, ...]) -> float:
    """How another text changes a lead."""
    scores, _ = encoder_pass(question.reading.model, ids, Watch())
    assert scores is not None
    return question.lead.of(scores[ids.index(question.reading.model.tokenizer.mask_token_id)]) - question.whole


@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", [family for family in ENCODERS if "question" in HEADS[family]])
def test_leads_of_passages_are_those_of_the_task_and_of_other_texts(family: str) -> None:
    """A passage's probability is the score that the task gives it; without a word it is that of a shorter text."""
    model, context = encoder(family, "question").model, " ".join(["the mat sat on the cat and a dog"] * 3)
    task = glassformer.pipeline("question-answering", model=model)
    why = model.explain("the cat sat", pair=context)
    best = task(question="the cat sat", context=context)
    assert why.answer.text == best["answer"]
    assert why.probability == pytest.approx(best["score"], rel=1e-4)
    reading, encoding = read_two(model, "the cat sat", context)
    text = ReadPassages(reading, encoding, context)
    text.read()
    question = ask(text, text.position, None, None)
    starts, ends = passage_logits(model, "the cat sat", context)
    first, last, other, end = (
        int(side[index]) for index in (question.token, question.lead.against) for side in (text.firsts, text.lasts)
    )
    assert not {*range(first, last + 1)} & {*range(other, end + 1)}
    lead = starts[first] + ends[last] - starts[other] - ends[end]
    assert question.whole == pytest.approx(lead / math.log(2), abs=1e-4)
    word = next(word for word in text.words() if word.origin == "prompt" and word.text == "sat")
    (logits,) = text.after([without(reading.ids, [word])])
    starts, ends = passage_logits(model, "the cat", context)
    shift = len(word.positions)
    shorter = starts[first - shift] + ends[last - shift] - starts[other - shift] - ends[end - shift]
    there = (logits[question.token] - logits[question.lead.against]) / math.log(2)
    assert there == pytest.approx(shorter / math.log(2), abs=1e-4)


def passage_logits(model: Any, question: str, context: str) -> tuple[Any, Any]:
    """From the module itself."""
    with torch.no_grad():
        output = model.module(**model.tokenizer([question], [context], return_tensors="pt"))
    return output.start_logits[0].numpy(), output.end_logits[0].numpy()


@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", ENCODERS)
def test_similarities_are_those_of_the_task_without_the_word(family: str) -> None:
    model = encoder(family, "base").model
    task, embed = (glassformer.pipeline(name, model=model) for name in ("similarity", "embed"))
    first, second = "the cat sat", "the mat on cat sat"
    why = model.explain(first, pair=second)
    assert why.lead == pytest.approx(task((first, second)), abs=1e-5)
    with torch.no_grad():
        alone = model.module(torch.tensor([model.tokenizer("")["input_ids"]])).last_hidden_state[0].mean(0).numpy()
    empty = [float(alone @ vector / np.linalg.norm(alone) / np.linalg.norm(vector)) for vector in embed([first, second])]
    assert why.similarity.empty == pytest.approx(max(empty), abs=1e-4)
    assert len(why.words) == 8
    for word in why.words:
        texts = [first, second]
        texts[word.origin == "pair"] = " ".join(one for one in texts[word.origin == "pair"].split() if one != word.text)
        assert why.lead + word.left_out == pytest.approx(task((texts[0], texts[1])), abs=1e-5), word.text


@pytest.mark.every_mechanism
@pytest.mark.parametrize("family", ENCODERS)
def test_a_label_of_two_texts_is_explained_with_the_types_that_they_are_read_with(family: str) -> None:
    model = encoder(family, "sequence").model
    why = model.explain("the cat sat", pair="a dog")
    with torch.no_grad():
        logits = model.module(**model.tokenizer(["the cat sat"], ["a dog"], return_tensors="pt")).logits[0].numpy()
    assert why.lead == pytest.approx((logits[why.answer.id] - logits[why.against.id]) / math.log(2), abs=1e-4)
    assert {word.origin for word in why.words} == {"prompt", "pair"}


def test_a_similarity_says_what_makes_it() -> None:
    word, other = WordEffect("old", "prompt", (2,), -0.5, ()), WordEffect("age", "pair", (9,), -0.3, ())
    similar = Similarity("cosine", 0.1)
    sides = (NamedWords("the first", ("old",), 0.25), NamedWords("the second", ("age",), 0.45))
    assert said_of_texts(0.76, similar, (word, other), sides, 0.73) == (
        "The texts are similar by 0.76 (cosine), and to a text without words by 0.10.",
        "“old” in the first and “age” in the second make it: left out of the first, 0.25 stays; left out of the second, "
        "0.45 stays.",
        "With these words alone it is 0.73.",
    )
    assert said_of_texts(0.76, similar, (word, other), sides[:1], 0.73)[1:] == (
        "“old” in the first makes it: left out of the first, 0.25 stays.",
        "With it alone it is 0.73.",
    )
    assert said_of_texts(0.76, similar, (word, other), (), None)[1] == (
        "No single word makes it: leaving “old” out changes it most (-0.50)."
    )
    assert said_of_texts(0.12, similar, (word, other), (), None)[1] == (
        "So there is hardly a similarity to explain: leaving “old” out changes it most (-0.50)."
    )
    assert [check.holds for check in checks(sides, 0.73, 0.76, similar)] == [True, False, True]
    assert [check.holds for check in checks(sides[:1], 0.2, 0.76, similar)] == [True, False]
    worths, texts = [0.5, 0.05, 0.3, 0.4, 0.45, 0.44], [0, 0, 1, 1, 1, 1]
    assert by_share(worths, texts, 0.76, 0.1) == ([0, 4, 5, 3, 2, 1], 4)  # three of the second text
    assert by_share(worths, texts, 0.12, 0.1)[1] == 0


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
    with read_text(reading, len(reading), reading.prompt_length - 1) as text:
        assert reading.texts[reading.prompt_length + telling_token(text)].strip() == "m"  # of "mat"
    told = model.read("the cat")
    told = replace(told, prompt_length=len(told))
    with read_text(told, len(told), 0) as text, pytest.raises(InputError, match="no answer"):
        telling_token(text)


def test_a_token_that_follows_from_the_answers_own_words_tells_little(smollm2: Path) -> None:
    """ "century" is expected after "in the 17th" whatever was asked."""
    model = glassformer.load(smollm2)
    reading = Activations.of_run(model.watch("Who wrote Romeo and Juliet?", max_new_tokens=20))
    with read_text(reading, len(reading), reading.prompt_length - 1) as text:
        assert "century" in text.reading.texts
        chosen = reading.prompt_length + telling_token(text)
        position = reading.texts.index("century")
        expected = 0.0
        here, elsewhere = (of(position - 1, reading.ids[position]) for of in (text.probability, text.elsewhere))
        for word, token in least_expected(text).items():
            other = exchanged(reading.ids[:position], {word: token}, model.tokenizer)
            there = max(probability(scores(reading, other), reading.ids[position]), elsewhere)
            expected += max(0.0, here * math.log2(here / there))
            assert np.allclose(text.known[other], scores(reading, other), atol=1e-3)
        owed, more = owed_to_words(text, [position, chosen])
        assert owed == pytest.approx(expected, abs=1e-3)
        assert more > owed


@pytest.mark.parametrize(
    ("prompt", "told"),
    mostly_swept(
        [("What is 7 + 5?", "12"), ("How many days are in a week?", "7"), ("Who wrote Hamlet?", "William")],
        ("What is 7 + 5?", "12"),
    ),
)
def test_what_tells_is_owed_to_the_question_and_not_its_own_words(smollm2: Path, prompt: str, told: str) -> None:
    """Neither "add" nor "Bard", although they come first; of a number's digits the one that depends on the question."""
    explanation = glassformer.load(smollm2).explain(prompt, quick=True)
    assert told in explanation.sentences[0]


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss", "qwen3_moe", "t5", "bart"])
def test_what_an_answer_owes_to_the_prompts_words_is_what_their_exchange_takes(name: str) -> None:
    """Held against whole passes, in families with soft caps, sinks, experts and encoders."""
    reading = both(name, "plain").reading()
    model = reading.model
    answer = replace(reading, prompt_length=len(reading) - 2)
    first = answer.prompt_length
    with read_text(answer, len(answer), first - 1) as text:
        found = owed_to_words(text, range(first, len(answer)))
        for position, owed in zip(range(first, len(answer)), found, strict=True):
            token, expected = answer.ids[position], 0.0
            here, elsewhere = text.probability(position - 1, token), text.elsewhere(position - 1, token)
            for word, other in least_expected(text).items():
                if answer.source is None:
                    logits = scores(answer, exchanged(answer.ids[:position], {word: other}, model.tokenizer))
                else:
                    logits = scores(
                        answer, answer.ids[:position], source=exchanged(answer.source, {word: other}, model.tokenizer)
                    )
                expected += max(0.0, here * math.log2(here / max(probability(logits, token), elsewhere)))
            assert owed == pytest.approx(expected, abs=1e-3)


def test_what_is_looked_through_for_what_tells_does_not_grow_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence without an end is read as far as its first tokens; logits that are too large together are not kept."""
    model = both("llama", "cpu").model
    run = model.watch(TEXT, max_new_tokens=60, eos_token_id=None, suppress_tokens=ending_tokens(model))
    ends: list[int] = []
    monkeypatch.setattr(operations, "telling_token", lambda text: ends.append(len(text.ids)) or telling_token(text))
    assert run.explain(quick=True).position < len(run.prompt_ids) + LOOKED_THROUGH
    assert ends == [len(run.prompt_ids) + LOOKED_THROUGH]
    reading = replace(model.read(TEXT), prompt_length=len(model.read(TEXT)) - 3)
    positions = range(reading.prompt_length, len(reading))
    found = []
    for size in (texts.CHUNK_BYTES, 1):
        monkeypatch.setattr(texts, "CHUNK_BYTES", size)
        monkeypatch.setattr(telling, "CHUNK_BYTES", size)
        with read_text(reading, len(reading), reading.prompt_length - 1) as text:
            found.append((owed_to_words(text, positions), bool(text.known)))
            exchangeable = bool(least_expected(text))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    assert [kept for _, kept in found] == [exchangeable, False]


def ending_tokens(model: Any) -> list[int]:
    """Tokens that would end a sentence."""
    spelled = (token_text(model.tokenizer, token) for token in range(model.config.vocab_size))
    return [token for token, text in enumerate(spelled) if set(text) & set(telling.SENTENCE_ENDS)]


def test_a_rival_is_of_the_answers_kind_where_one_is_near() -> None:
    """The logits stand for a text in which "the" and a piece of a word came before another name."""
    reading = both("qwen3", "cpu").reading()
    with asked(reading) as question:
        lead = question.lead
        logits = np.zeros_like(question.logits)
        logits[[3, 4, 5, 6]] = [9, 8, 7, 6]
        assert Lead(3, 5, False, (4,)).of(logits) == pytest.approx(2 / math.log(2))
        assert Lead(3, 4, False).of(logits) == pytest.approx(1 / math.log(2))
        assert Lead(3, 6, True).of(logits) == pytest.approx(3 / math.log(2))
        assert lead.of(question.logits) == question.whole
        assert set(lead.aside).isdisjoint({lead.token, lead.against})


def test_each_word_is_in_one_of_three_groups_of_each_draw() -> None:
    words = [Word(str(index), "prompt", ((index,),)) for index in range(8)]
    assert word_groups([]) == []
    assert word_groups(words[:2]) in ([[words[0]], [words[1]]], [[words[1]], [words[0]]])
    groups = word_groups(words)
    assert [len(group) for group in groups] == [3, 3, 2] * 2
    for draw in (groups[:3], groups[3:]):
        assert sorted(word.first for group in draw for word in group) == list(range(8))
    assert groups == word_groups(words)
    assert groups[:3] != groups[3:]


def test_words_are_exchanged_for_tokens_that_are_written_like_them() -> None:
    reading = both("qwen3", "cpu").reading("the cat sat on the mat")
    tokenizer, vocabulary = reading.model.tokenizer, range(reading.model.config.vocab_size)
    for word in words_of(reading, len(reading)):
        for other in exchanges(word, vocabulary, reading, reading.ids, 3):
            text = token_text(tokenizer, other)
            assert text.strip().isalpha()
            assert text.strip().islower()
            ids = exchanged(reading.ids, {word: other}, tokenizer)
            assert tokenizer.decode(ids).split() == [
                text.strip() if one == word.text else one for one in ["the", "cat", "sat", "on", "the", "mat"]
            ]


class TestSentences:
    def test_a_word_that_decides(self) -> None:
        parts = (PartEffect(23, 4, 0.61, 0.61, 0.4), PartEffect(20, None, 0.3, 0.93, None))
        carried = Carried("France", "Italy", " Rome", ROME, 9.0, -5.0, parts, 24, 26)
        said = sentences(" Paris", " Lyon", 3.1, None, (FRANCE, CAPITAL), 1, carried)
        assert said == (
            "“Paris” led “Lyon” by 3.1 bits.",
            "“France” decides it: with another word in place of that word the lead is gone (-5.0). With “Italy” instead the "
            "model says “Rome”.",
            "It is brought to the last token mostly by head 4 of block 23, which looks at “France” with 40.0% "
            "(alone it restores 61% of the lead over “Rome”; 2 parts together 93%), and the answer is there from block 24 "
            "on (the lens reads it from block 26 on).",
        )

    def test_words_that_decide_together(self) -> None:
        capital = WordEffect("capital", "prompt", (3,), -1.0, (replace(ITALY, change=-2.0, outcome="another kind"),))
        assert by_worth((capital, FRANCE), 3.1) == ([1, 0], 2)
        assert sentences("a", "b", 3.1, None, (FRANCE, capital), 2, None)[1].startswith(
            "“France” and “capital” decide it: with another word in place of any one of them the lead falls to 1.1 "
        )

    def test_words_of_the_answer_come_after_those_of_the_prompt(self) -> None:
        said = replace(FRANCE, text="of", origin="answer", exchanges=(replace(ITALY, change=-9.0),))
        assert by_worth((said, FRANCE), 3.1) == ([1, 0], 2)
        assert sentences("a", "b", 3.1, None, (FRANCE, said), 2, None)[1].startswith(
            "“France”, and “of” in the answer so far, decide it: with another word in place of any one of them the lead"
        )
        alone = sentences("a", "b", 3.1, None, (said,), 1, None)[1]
        assert alone.startswith("“of” in the answer so far decides it: with another word in place of that word")

    def test_no_single_word(self) -> None:
        words = (CAPITAL, CAPITAL)
        assert by_worth(words, 8.0) == ([0, 1], 0)
        assert by_worth((CAPITAL, FRANCE), 3.1) == ([1, 0], 1)
        same = replace(FRANCE, exchanges=(replace(ITALY, outcome="unchanged"),))
        assert by_worth((same,), 3.1) == ([0], 0)
        said = sentences("a", "b", 8.0, None, (WordEffect("to", "prompt", (0,), -2.0, ()),), 0, None)
        assert said[1] == (
            "No single word decides: none takes half of the lead with it when it is exchanged for others; leaving “to” out "
            "changes it most (-2.0)."
        )
        slight = sentences("a", "b", 8.0, None, (WordEffect("to", "prompt", (0,), -0.1, ()),), 0, None)
        assert slight[1] == "No single word decides: without any one of them the lead stays about the same."

    def test_a_word_that_matters_only_when_it_is_left_out_is_not_passed_over(self) -> None:
        hot = WordEffect("hot", "prompt", (3,), -1.8, (Exchange("heat", 1, 0.5, " cold", 2, 0.9, "unchanged"),))
        slight = WordEffect("the", "prompt", (0,), 0.2, (Exchange("a", 1, -0.1, " cold", 2, 0.9, "unchanged"),))
        said = sentences(" cold", " cool", 1.1, None, (slight, hot), 0, None)
        assert said[1].endswith("leaving “hot” out changes it most (-1.8).")

    def test_a_near_tie_comes_first_and_so_does_a_draw(self) -> None:
        assert sentences("a", "b", 0.2, None, (), 0, None)[0] == "It was nearly a tie: “a” led “b” by only 0.2 bits."
        best = "The model's own best was “c” with 41.0%; "
        for draw, said in {
            Draw("c", 0.41, 3, 0.09, "draw", False): "the draw took “a”, its third with 9.0%.",
            Draw("c", 0.41, 12, 0.09, None, False): "“a” was its choice number 12 with 9.0%.",
            Draw("c", 0.41, 2, 0.09, "grammar", True): "grammar ruled that out, and “a” was taken, its second with 9.0%.",
            Draw(
                "c", 0.41, 2, 0.09, "logit_bias", False
            ): "logit_bias put “a” before it, and “a” was taken, its second with 9.0%.",
        }.items():
            assert sentences("a", "b", -1.0, draw, (), 0, None)[0] == best + said

    def test_parts_that_carry_little(self) -> None:
        carried = Carried("x", "y", "z", ROME, 2.0, 0.0, (PartEffect(1, 2, 0.08, 0.08, None),), None, None)
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
