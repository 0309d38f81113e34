"""Words of other tools: each leads to a command that there is."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from glassformer.cli.app import SECTIONS, SHORT_FORMS, VERBS, app, operation_verbs
from glassformer.cli.command_synonyms import OPTIONS, WORDS, familiar_command
from tests.cli.test_cli import failed, glass


@pytest.mark.parametrize(
    ("word", "command"),
    [
        ("lora", "That is glass train --init MODEL --chat FILE --lora 8 --out DIR."),
        ("fine-tune", "That is glass train --init MODEL --chat FILE --out DIR."),
        ("Finetunning", "That is glass train --init MODEL --chat FILE --out DIR."),
        ("logit_lens", "That is glass lens TEXT."),
        ("sae", "That is glass features --sae DIR or glass train-features."),
        ("quantize", "That is glass models quantize MODEL --to q4_k."),
        ("rum", "Did you mean 'run'?"),
    ],
)
def test_an_unknown_word_names_the_command(word: str, command: str) -> None:
    assert f"No such command {word!r}. {command}\n" in failed(glass(word, "Hi"), 2)


def test_a_familiar_word_after_a_groups_name() -> None:
    assert "No such command 'delete'. That is glass models rm MODEL.\n" in failed(glass("models", "delete", "x"), 2)


def test_a_word_like_none_suggests_nothing() -> None:
    assert failed(glass("xylophone"), 2).endswith("No such command 'xylophone'.\n")


@pytest.mark.parametrize(
    "line", sorted({line for value in WORDS.values() for line in ([value] if isinstance(value, str) else value)})
)
def test_the_command_of_a_word_exists(line: str) -> None:
    words = shlex.split(line)[1:]
    context = click.Context(app)
    command: Any = app
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.get_command(context, words.pop(0))
        assert command is not None, line
    known = {name for parameter in command.get_params(context) for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_a_word_is_no_verb_and_finds_itself() -> None:
    for word, value in WORDS.items():
        assert word not in {*VERBS, *operation_verbs(), *SHORT_FORMS}
        assert familiar_command(word) == f" That is {value if isinstance(value, str) else ' or '.join(value)}."


def test_the_help_has_the_verbs_under_headings() -> None:
    shown = glass("--help").stdout
    headings = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [*(f"{heading}:" for heading in SECTIONS), "Options:"]
    assert {"(LoRA,", "DPO),", "(SAE)"} <= set(shown.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "Hi", "--max_tokens", "3"), "No such option '--max_tokens'. Did you mean '--max-new-tokens'?"),
        (("run", "Hi", "--lora", "x"), "No such option '--lora'. Did you mean '--adapter'?"),
        (("run", "Hi", "--top_k", "3"), "No such option '--top_k'. Did you mean '--top-k'?"),
        (("tokens", "Hi", "--lora", "x"), "No such option '--lora'.\n"),  # it has none
    ],
)
def test_an_option_of_another_tool_names_the_one_here(words: tuple[str, ...], message: str) -> None:
    assert message in failed(glass(*words), 2)


def test_each_option_for_another_tools_exists() -> None:
    verbs = [app.get_command(click.Context(app), verb) for verb in ("run", "lens")]
    known = {name for verb in verbs if verb for parameter in verb.params for name in parameter.opts}
    assert set(OPTIONS.values()) <= known
    assert not OPTIONS.keys() & known
