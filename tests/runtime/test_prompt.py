"""Prompt options: how keyword arguments become one value, and which of them are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.errors import TemplateError, UnknownArgument
from glassformer.runtime.prompt import RESERVED, PromptOptions


@pytest.fixture(scope="module")
def model(tiny_qwen3: Path) -> Any:
    return glassformer.load(tiny_qwen3)


def test_prompt_options_of_keywords() -> None:
    assert PromptOptions.of({}) == PromptOptions.of({"template": None}) == PromptOptions()
    assert PromptOptions.of({"raw": True, "system": "Be brief."}) == PromptOptions(raw=True, system="Be brief.")
    assert PromptOptions.of({"template": {"enable_thinking": True}}).template == {"enable_thinking": True}


def test_split_gives_prompt_options_and_settings() -> None:
    options, settings = PromptOptions.split({"top_k": 3, "raw": True, "seed": 1})
    assert (options, settings) == (PromptOptions(raw=True), {"top_k": 3, "seed": 1})


@pytest.mark.parametrize(
    "call",
    [
        lambda model, **keywords: model.tree("Hi", **keywords),
        lambda model, **keywords: model.look("Hi", **keywords),
        lambda model, **keywords: model.read("Hi", **keywords),
        lambda model, **keywords: model.patch("Hi", "Ho", **keywords),
        lambda model, **keywords: model.render("Hi", **keywords),
        lambda model, **keywords: model.encode("Hi", **keywords),
    ],
    ids=["tree", "look", "read", "patch", "render", "encode"],
)
def test_unknown_prompt_keyword_suggests_the_nearest(model: Any, call: Callable[..., Any]) -> None:
    expected = "there is no argument 'sytem' here. Did you mean 'system'\\? A prompt's arguments are: raw, system, template;"
    with pytest.raises(UnknownArgument, match=expected):
        call(model, sytem="Be brief.")
    with pytest.raises(UnknownArgument, match=r"no argument 'enable_thinking' here\. .* go into template=\{…\}"):
        call(model, enable_thinking=True)


@pytest.mark.parametrize("method", ["chat", "stream", "watch", "watch_many", "prepare"])
def test_unknown_setting_suggests_the_nearest(model: Any, method: str) -> None:
    with pytest.raises(UnknownArgument, match="there is no setting 'temperatur'. Did you mean 'temperature'"):
        getattr(model, method)("Hi", temperatur=0.5)


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_name_is_no_template_variable(model: Any, name: str) -> None:
    with pytest.raises(TemplateError, match=f"^{name} is no variable of a chat template, but an argument of its own"):
        model.chat("Hi", template={name: True})


def test_template_variables_reach_the_chat_template(model: Any) -> None:
    assert model.render("Hi", template={"enable_thinking": True}).endswith("assistant\n")
    assert model.render("Hi", template={"enable_thinking": False}) == model.render("Hi")
