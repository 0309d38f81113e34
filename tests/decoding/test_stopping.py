"""When texts end: several ends, strings that straddle tokens, time, criteria, cancelling, and rows that end apart."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import glassformer
from glassformer.decoding import Finish, GenerationConfig, Policy, Recipe
from glassformer.decoding import stopping as stop
from glassformer.decoding.token_history import TokenHistory
from glassformer.text.streaming import StopBuffer
from glassformer.training.new_tokenizer import new_tokenizer
from tests.decoding.test_settings import Letters
from tests.sweeps import examples


def finishes(tokens: list[int], **changes: Any) -> list[Finish | None]:
    """What is said after each of these tokens, up to the end."""
    policy = Policy(Recipe.of(GenerationConfig().merged(changes), Letters()), [1, 2], context=200)
    found = []
    for token in tokens:
        found.append(policy.accept(token).finish)
        if found[-1]:
            break
    return found


def test_eos_and_length_limits_end_the_text() -> None:
    assert finishes([5, 6, 7], eos_token_id=[7, 9]) == [None, None, Finish.EOS]
    assert finishes([5, 6, 7], max_new_tokens=2) == [None, Finish.LENGTH]
    assert finishes([5, 6, 7], max_length=5) == [None, None, Finish.LENGTH]
    assert finishes([5, 6], eos_token_id=6, max_new_tokens=2) == [None, Finish.EOS]


def test_stop_strings_straddle_tokens() -> None:
    def said(tokens: list[str], *stops: str) -> int:
        """After how many tokens it stops, where a token may be several letters."""
        words: dict[int, str] = dict(enumerate(tokens))
        found = stop.at_strings(stops, lambda ids: "".join(words[one] for one in ids))
        history = TokenHistory([0], 99)
        for token in words:
            history.add(token)
            if found(history):
                return history.step
        return 0

    assert said(["Hel", "lo wo", "rld"], "lo w") == 2
    assert said(["a", "b", "c", "d"], "bcd") == 4
    assert said(["ab", "cd\nx", "e"], "\n") == 2
    assert said(["ab", "cd"], "x", "b") == 1
    assert said(["ab", "cd"], "x") == 0
    assert said([*"a" * 50, *"end"], "end") == 53


def test_the_prompt_does_not_stop_the_text() -> None:
    policy = Policy(Recipe.of(GenerationConfig(stop_strings="ab"), Letters()), [ord("a")], context=99)
    assert policy.accept(ord("b")).finish is None
    assert policy.accept(ord("a")).finish is None
    assert policy.accept(ord("b")).finish is Finish.STOP


def test_max_time_ends_the_text() -> None:
    now = [10.0]
    over = stop.after_seconds(2.5, lambda: now[0])
    assert over(TokenHistory([1], 9)) is None
    now[0] = 12.5
    assert over(TokenHistory([1], 9)) is Finish.TIME
    assert finishes([5, 6], max_time=1e-9) == [Finish.TIME]
    assert finishes([5, 6], max_time=1000) == [None, None]


def test_stopping_criteria_and_stop_when_end_the_text() -> None:
    assert finishes([5, 6, 7], stop_when=lambda ids: ids.sum() > 13) == [None, Finish.CRITERION]
    seen = []

    def familiar(input_ids: Any, scores: Any, **more: Any) -> Any:
        seen.append(input_ids.tolist())
        return torch.tensor([input_ids.shape[1] > 3])

    assert finishes([5, 6, 7], stopping_criteria=[familiar]) == [None, Finish.CRITERION]
    assert seen == [[[1, 2, 5]], [[1, 2, 5, 6]]]
    assert finishes([5, 6], stopping_criteria=[lambda ids, scores: None]) == [None, None]
    assert finishes([5, 6], stopping_criteria=[lambda ids, scores: ids[0, -1] == 6]) == [None, Finish.CRITERION]


def test_a_set_event_cancels_the_text() -> None:
    event = threading.Event()
    recipe = Recipe.of(GenerationConfig(cancel=event))
    policy = Policy(recipe, [1], context=99)
    assert policy.accept(5).finish is None
    event.set()
    assert policy.accept(5).finish is Finish.CANCELLED


def test_cancel_from_another_thread() -> None:
    model = glassformer.load("smollm2")
    run = model.start("Count to a thousand.", max_new_tokens=300)
    pieces = model.generate(run)
    next(pieces)
    thread = threading.Thread(target=run.cancel)
    thread.start()
    thread.join()
    rest = list(pieces)
    assert run.finish is Finish.CANCELLED
    assert len(run.steps) <= 4
    assert len(rest) <= 3
    assert model.chat("Hi", max_new_tokens=2)


class TestStopBuffer:
    @effort(max_examples=examples(75, 300), deadline=None)
    @given(st.lists(st.text("ab\n", max_size=4), max_size=12), st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=3))
    def test_what_comes_out_is_the_text_before_the_first_stop(self, pieces: list[str], stops: list[str]) -> None:
        held = StopBuffer(stops)
        out = ""
        for piece in pieces:
            out += held.feed(piece)
            if held.stopped is not None:
                break
        out += held.finish()
        whole = "".join(pieces)
        ends = [whole.index(one) for one in stops if one in whole]
        assert held.stopped is None or held.stopped in stops
        if not ends:
            assert out == whole
        else:
            assert whole.startswith(out)
            assert not any(one in out for one in stops)
            assert held.stopped is not None
            assert whole[len(out) :].startswith(held.stopped)

    def test_nothing_is_buffered_without_need(self) -> None:
        held = StopBuffer(["\n\n"])
        assert [held.feed(piece) for piece in ("a", "b\n", "c", "d\n", "\ne")] == ["a", "b", "\nc", "d", ""]
        assert held.stopped == "\n\n"
        assert held.feed("more") == ""


def test_chat_cuts_the_stop_string_and_generate_keeps_its_tokens(tiny_qwen3: Path) -> None:
    model = glassformer.load(tiny_qwen3)
    whole = model.chat("Name three colours.", max_new_tokens=24)
    middle = whole[len(whole) // 2 : len(whole) // 2 + 4]
    run = model.watch("Name three colours.", max_new_tokens=24, stop_strings=[middle, "never there"])
    assert run.finish is Finish.STOP
    assert run.stop == middle
    assert run.text == whole[: whole.index(middle)]
    assert "".join(model.stream("Name three colours.", max_new_tokens=24, stop_strings=middle)) == run.text
    said = model.tokenizer.decode([step.id for step in run.steps])
    assert middle in said
    ids = torch.tensor([run.prompt_ids])
    found = model.module.generate(ids, max_new_tokens=24, stop_strings=middle, tokenizer=model.tokenizer)
    assert found[0, len(run.prompt_ids) :].tolist() == [step.id for step in run.steps]


def test_a_stop_string_of_tokens_that_are_not_shown() -> None:
    run = glassformer.load("smollm2").watch("Say hello.", eos_token_id=[], stop_strings="<|im_end|>", max_new_tokens=40)
    assert run.finish is Finish.STOP
    assert run.stop == "<|im_end|>"
    assert "<|im_end|>" not in run.text


def test_stop_strings_equal_the_reference(tmp_path: Path) -> None:
    """On the same scores, the reference stops after the same token; its criterion searches the whole vocabulary first."""
    from transformers import StopStringCriteria

    text = "The quick brown fox jumps over the lazy dog. “Naïve” café, 東京 and 🎉 party!\n\nThe end."
    tokenizer = new_tokenizer(["The quick brown fox and the lazy dog own a crazy party. The end of the fox."], 300)
    theirs_tokenizer = reference_tokenizer(tmp_path, tokenizer)
    ids = tokenizer.encode(text)
    for stops in (["own f"], ["zy do"], [". “"], ["東"], ["京 a"], ["🎉"], ["!\n\nT"], ["xyz", "end"], ["."]):
        ours = stop.at_strings(stops, lambda part: tokenizer.decode(part))
        theirs = StopStringCriteria(theirs_tokenizer, stops)
        history = TokenHistory([ids[0]], 99)
        for token in ids[1:]:
            history.add(token)
            expected = bool(theirs(torch.tensor([history.chosen]), None)[0])
            assert (ours(history) is Finish.STOP) == expected, (stops, tokenizer.decode(history.chosen))
            if expected:
                break
        else:
            pytest.fail(f"{stops} was never met")


def reference_tokenizer(folder: Path, tokenizer: Any) -> Any:
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def test_draws_do_not_depend_on_how_much_is_remembered() -> None:
    """A buffer that grows keeps what it held."""
    history = TokenHistory([7] * 40, 10_000)
    for token in range(500):
        history.add(token)
    assert np.array_equal(history.ids, [7] * 40 + list(range(500)))
    assert history.new.tolist() == history.chosen
    fork = history.fork()
    fork.add(1)
    assert history.step == 500
    assert fork.draw() != history.draw()
