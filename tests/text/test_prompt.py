"""Prompt options: how keyword arguments become one value, and which of them are refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.decoding import GenerationConfig
from glassformer.ground.errors import InputTypeError, TemplateError, UnknownArgument
from glassformer.runtime import Model
from glassformer.text.prompt import RESERVED, PromptOptions


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    return glassformer.load(tiny_qwen3)


def test_prompt_options_of_keywords() -> None:
    call = Model.render
    assert PromptOptions.of({}, call) == PromptOptions.of({"template": None}, call) == PromptOptions()
    assert PromptOptions.of({"raw": True, "system": "Be brief."}, call) == PromptOptions(raw=True, system="Be brief.")
    assert PromptOptions.of({"template": {"enable_thinking": True}}, call).template == {"enable_thinking": True}


def test_split_gives_prompt_options_and_settings() -> None:
    options, settings = PromptOptions.split({"top_k": 3, "raw": True, "seed": 1}, Model.chat, GenerationConfig.names())
    assert (options, settings) == (PromptOptions(raw=True), {"top_k": 3, "seed": 1})


CALLS: dict[str, tuple[str, ...]] = {
    "tree": ("Hi",), "look": ("Hi",), "read": ("Hi",), "patch": ("Hi", "Ho"), "render": ("Hi",), "encode": ("Hi",),
}  # fmt: skip


@pytest.mark.parametrize("method", CALLS)
def test_unknown_prompt_keyword_suggests_the_nearest(model: Any, method: str) -> None:
    call = partial(getattr(model, method), *CALLS[method])
    with pytest.raises(UnknownArgument, match=rf"^{method}\(\) .*'sytem'"):
        call(sytem="Be brief.")
    with pytest.raises(UnknownArgument, match="'enable_thinking'"):
        call(enable_thinking=True)


@pytest.mark.parametrize(
    ("method", "misspelt", "name"),
    [
        ("tree", "widht", "width"), ("patch", "answr", "answer"), ("read", "targt", "target"), ("look", "par", "pair"),
        ("chat", "syste", "system"), ("watch", "lok", "look"), ("watch", "chang", "change"), ("watch_many", "raww", "raw"),
        ("stream", "templat", "template"), ("start", "sytem", "system"),
    ],
)  # fmt: skip
def test_unknown_keyword_of_a_method_suggests_its_own(model: Any, method: str, misspelt: str, name: str) -> None:
    message = rf"^{method}\(\) has no argument '{misspelt}'\. Did you mean '{name}'\?"
    with pytest.raises(UnknownArgument, match=message):
        getattr(model, method)(*CALLS.get(method, ("Hi",)), **{misspelt: 3})


@pytest.mark.parametrize("method", ["chat", "stream", "watch", "watch_many", "start"])
def test_unknown_setting_suggests_the_nearest(model: Any, method: str) -> None:
    with pytest.raises(UnknownArgument, match="'temperatur'"):
        getattr(model, method)("Hi", temperatur=0.5)


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_name_is_no_template_variable(model: Any, name: str) -> None:
    with pytest.raises(TemplateError, match=name):
        model.chat("Hi", template={name: True})


def test_template_variables_reach_the_chat_template(model: Any) -> None:
    assert model.render("Hi", template={"enable_thinking": True}).endswith("assistant\n")
    assert model.render("Hi", template={"enable_thinking": False}) == model.render("Hi")


def test_several_conversations_are_no_prompt(model: Any) -> None:
    talk = [{"role": "user", "content": "Hi"}]
    for call in (model.chat, model.watch, model.read, model.look):
        with pytest.raises(InputTypeError, match="a list of several"):
            call([talk, talk])
