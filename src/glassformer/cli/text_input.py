"""Texts from the command line and from stdin, which belong together: `cat letter.txt | glass run "Summarize:"`."""

from __future__ import annotations

import io
import os
import stat
import sys
from pathlib import Path

import click

from glassformer.cli import common
from glassformer.ground.errors import InputError

STDIN_SECONDS = 1.0  # that a pipe beside a prompt may take until its first byte


def read_text(argument: str | None, name: str) -> str:
    """An argument, or stdin where it is '-' or missing."""
    if argument is not None and argument != "-":
        return argument
    if sys.stdin is None or (argument is None and sys.stdin.isatty()):
        raise click.BadParameter("say something, or pipe a text in.", param_hint=name)
    return _read_stdin()


def read_joined_text(argument: str | None, name: str) -> str:
    """The same; what is piped in beside an argument follows it on a new line."""
    text = read_text(argument, name)
    piped = _read_stdin() if argument not in (None, "-") and _stdin_has_text() else ""
    return f"{text}\n{piped}" if piped else text


def read_prompt(argument: str | None) -> str:
    """A prompt with what is piped in."""
    return _checked_prompt(read_joined_text(argument, "PROMPT"))


def read_prompt_alone(argument: str | None) -> str:
    """A prompt that is one of several texts, so that nothing is joined to it."""
    return _checked_prompt(read_text(argument, "PROMPT"))


def _checked_prompt(text: str) -> str:
    if not text.strip():
        raise InputError("the prompt is empty. Say something.")
    return text


def read_text_file(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}). Convert it first.") from error
    except OSError as error:
        raise unreadable_error(path, error) from error


def unreadable_error(path: Path, error: OSError) -> InputError:
    """The error for a file that cannot be read."""
    return InputError(f"{path}: cannot be read: {error.strerror}. Check the path and its permissions.")


def not_text_error(error: UnicodeDecodeError | UnicodeEncodeError) -> InputError:
    """The error for input bytes that are not text."""
    return InputError(f"the input is not {error.encoding} text ({error.reason}). Convert it first.")


def _read_stdin() -> str:
    try:
        text = sys.stdin.read().rstrip("\n")
        text.encode("utf-8", "surrogateescape").decode("utf-8")  # bytes that are not text came in as surrogates
        return text
    except UnicodeDecodeError as error:
        raise not_text_error(error) from error


def _stdin_has_text() -> bool:
    """Whether stdin is a file or a pipe with something in it.

    A pipe that stays silent, such as one inherited from a service or an editor, is not waited for.
    """
    if sys.stdin is None or sys.stdin.isatty():
        return False
    try:
        descriptor = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a stream of Python's own
        return True
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return stat.S_ISREG(mode)
    if sys.platform == "win32":  # which cannot wait for a pipe with a time limit
        return True
    import select

    if select.select([descriptor], [], [], STDIN_SECONDS)[0]:
        return True
    waited = f"nothing came from stdin within {STDIN_SECONDS:g} s"
    common.note(f"glass: {waited}, so the prompt stands alone. '-' in its place waits for stdin.")
    return False
