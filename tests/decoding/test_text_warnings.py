"""What a run says when it goes in a circle or makes no sense; and that good texts hear nothing."""

from __future__ import annotations

from typing import Any

import pytest

import glassformer
from glassformer.decoding import GenerationConfig, Policy, Recipe
from glassformer.decoding.text_warnings import remedies, remedy, repeated_period


def text(ids: list[int], gap: float = 0.0, **changes: Any) -> Policy:
    policy = Policy(Recipe.of(GenerationConfig().merged({"max_new_tokens": 900, **changes})), [1], context=999)
    for token in ids:
        policy.accept(token)
    policy.gap = gap * len(ids)
    return policy


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3] + [7] * 20, 1),
        ([9, *([1, 2, 3] * 8)], 3),
        (list(range(30)) * 5, 30),
        ([*([1, 2, 3] * 8), 9], None),
        ([7] * 10, None),
        (list(range(200)), None),
        ([n if n % 9 else n % 7 for n in range(90)], None),
        ([[1, 2, 3, 4, 5, 6, 7, 8][n % 8] if n % 23 else n for n in range(100)], 0),
        ([], None),
    ],
)
def test_repeated_period_finds_repetition(ids: list[int], expected: int | None) -> None:
    assert repeated_period(ids) == expected


def test_the_setting_to_try_depends_on_those_in_force() -> None:
    loop = [1, 2, 3] * 10
    assert remedy(text(loop)) == (
        "the text repeats itself (the same 3 tokens again and again). "
        "Try repetition_penalty=1.1, or do_sample=True with temperature=0.7."
    )
    assert (remedy(text(loop, do_sample=True)) or "").endswith("Try repetition_penalty=1.1.")
    assert (remedy(text(loop, repetition_penalty=1.1)) or "").endswith("Try no_repeat_ngram_size=4, or dry_multiplier=0.8.")
    cold = text(loop, repetition_penalty=1.1, do_sample=True, temperature=0.2)
    assert (remedy(cold) or "").endswith("Try a temperature above 0.2.")
    assert "the same token again and again" in (remedy(text([5] * 30)) or "")


def test_a_garbled_text_gets_advice() -> None:
    wild = list(range(20))
    assert remedy(text(wild, gap=1.0, do_sample=True)) is None
    assert (remedy(text(wild, gap=6.0, do_sample=True, temperature=2.0)) or "").endswith(
        "Try a temperature below 2, such as 0.7."
    )
    assert "min_p=0.05" in (remedy(text(wild, gap=6.0, do_sample=True, top_k=0)) or "")
    assert "do_sample=False" in (remedy(text(wild, gap=6.0, do_sample=True)) or "")
    assert remedy(text(wild[:5], gap=6.0, do_sample=True)) is None


def test_a_text_with_a_grammar_gets_no_advice() -> None:
    model = glassformer.load("smollm2")
    run = model.watch("Count.", choices=[" ".join("4" * 40)])
    assert run.text == " ".join("4" * 40)
    assert run.remedy is None


def test_advice_for_several_texts_is_one_line() -> None:
    assert remedies([text([1]), text([5] * 30), text([5] * 30)]) == (
        "2 of 3 texts: the text repeats itself (the same token again and again). "
        "Try repetition_penalty=1.1, or do_sample=True with temperature=0.7."
    )
    assert remedies([text([1])]) is None


def test_a_real_model_that_repeats_itself_gets_advice(caplog: pytest.LogCaptureFixture) -> None:
    model = glassformer.load("smollm2")
    loop = model.watch("The fox. The fox. The fox. The fox.", raw=True, max_new_tokens=32)
    assert loop.remedy is not None
    assert caplog.messages == [loop.remedy]
    assert "repetition_penalty=1.1" in loop.remedy
    fixed = model.watch("The fox. The fox. The fox. The fox.", raw=True, max_new_tokens=32, repetition_penalty=1.3)
    assert fixed.remedy is None
    wild = model.watch("Hi!", do_sample=True, temperature=4.0, top_k=0, seed=1, max_new_tokens=24)
    assert "may make no sense" in (wild.remedy or "")
    tame = model.watch("Hi!", do_sample=True, temperature=0.8, seed=1, max_new_tokens=24)
    assert tame.remedy is None
    assert len(caplog.messages) == 2
