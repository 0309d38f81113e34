"""A prompt from the command line and a text from stdin belong together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from glassformer.cli import text_input
from glassformer.cli.text_input import read_joined_text
from tests.cli.test_cli import glass


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[TextIO, int]]:
    """A pipe as stdin, and the descriptor that writes to it."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stdin:  # noqa: PTH123
        monkeypatch.setattr(sys, "stdin", stdin)
        yield stdin, writing


@pytest.mark.parametrize("verb", ["run", "trace"])
def test_piped_text_follows_the_prompt(verb: str, tiny_qwen3: Path) -> None:
    words = (verb, "--raw", "Translate:", "-m", str(tiny_qwen3), "-n", "1", "--json")
    alone, joined = (json.loads(glass(*words, stdin=stdin).stdout) for stdin in ("", "Guten Tag\n"))
    if verb == "run":
        assert (alone["prompt"], joined["prompt"]) == ("Translate:", "Translate:\nGuten Tag")
    else:
        assert alone["places"][0]["before"] == "Translate:"
        assert joined["places"][0]["before"].endswith("Guten Tag")


@pytest.mark.parametrize(("verb", "field"), [("look", "prompt"), ("tree", "prompt")])
def test_piped_text_follows_the_prompt_of_a_view(verb: str, field: str, tiny_qwen3: Path) -> None:
    done = glass(verb, "--raw", "Translate:", "-m", str(tiny_qwen3), "--json", stdin="Guten Tag\n")
    assert json.loads(done.stdout)[field] == "Translate:\nGuten Tag"


def test_piped_text_follows_a_single_text_of_tokens(smollm2: Path) -> None:
    assert json.loads(glass("tokens", "a", "--json", stdin="b\n").stdout)["text"] == "a\nb"
    assert json.loads(glass("tokens", "a", "b", "--json", stdin="c\n").stdout)["texts"] == ["a", "b"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no locale of bytes")
@pytest.mark.parametrize("variables", [{}, {"PYTHONUTF8": "0"}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_text_is_utf_8_in_any_locale(variables: dict[str, str], smollm2: Path, tmp_path: Path) -> None:
    """Arguments, stdin, files' names and what is printed."""
    code = "from glassformer.cli import main; main()"
    command = [sys.executable, "-c", code, "tokens", "-m", str(smollm2), "--json"]
    environment = {**os.environ, "LC_ALL": "C", **variables}
    for words, piped in ((["café ☕"], ""), (["-"], "café ☕")):
        done = subprocess.run([*command, *words], input=piped.encode(), env=environment, capture_output=True, check=True)
        assert json.loads(done.stdout.decode())["text"] == "café ☕"
    wrong = subprocess.run([*map(os.fsencode, command), b"caf\xe9"], env=environment, capture_output=True)
    assert wrong.stderr == b"glass: the text holds bytes that are not UTF-8. Convert it first.\n"


def test_two_compared_texts_take_nothing_from_stdin(tiny_qwen3: Path) -> None:
    done = glass("compare", "--raw", "Hi dog", "Hello dog", "-m", str(tiny_qwen3), "--json", stdin="and more\n")
    assert "more" not in done.stdout


def test_a_pipe_is_read_to_its_end(pipe: tuple[TextIO, int]) -> None:
    os.write(pipe[1], b"one\ntwo\n")
    os.close(pipe[1])
    assert read_joined_text("Count:", "PROMPT") == "Count:\none\ntwo"


def test_an_empty_pipe_adds_nothing(pipe: tuple[TextIO, int]) -> None:
    os.close(pipe[1])
    assert read_joined_text("Hi", "PROMPT") == "Hi"


def test_a_silent_pipe_is_not_waited_for(
    pipe: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text_input, "STDIN_SECONDS", 0.0)
    assert read_joined_text("Hi", "PROMPT") == "Hi"
    assert "nothing came from stdin within 0 s, so the prompt stands alone" in capsys.readouterr().err
    os.close(pipe[1])


def test_a_file_as_stdin_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\n")
    with (tmp_path / "text").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert read_joined_text("Count:", "PROMPT") == "Count:\none"


@pytest.mark.parametrize("stdin", [None, type("Terminal", (), {"isatty": lambda self: True})()])
def test_a_terminal_or_closed_stdin_adds_nothing(stdin: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    assert read_joined_text("Hi", "PROMPT") == "Hi"
