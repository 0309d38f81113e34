r'''Messages as they come in: typed at a terminal, or piped.

A line is a message. One that ends in a backslash goes on, and what stands between `"""` and `"""` is one message, whatever
its lines. A first slash makes a command of it; a blank before the slash, or the quotes, keep it a message.
'''

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from glassformer.cli import common
from glassformer.errors import InputError

MARK = '"""'
MOST = 1000  # messages that are remembered
PAUSE = 0.02  # seconds; lines that come faster one after the other were pasted


class Lines(Protocol):
    """Where lines come from."""

    def line(self, more: bool) -> str | None:
        """The next one, or None at the end; `more`: it goes on with a message."""


def message(lines: Lines) -> str | None:
    """The next message or command, or None at the end."""
    first = lines.line(False)
    if first is None:
        return None
    if first.lstrip().startswith(MARK):
        return _block(lines, first.lstrip()[len(MARK) :])
    parts = [first]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        following = lines.line(True)
        parts += [] if following is None else [following]
        if following is None:
            break
    return "\n".join(parts)


def _block(lines: Lines, first: str) -> str:
    parts = [first]
    while not parts[-1].rstrip().endswith(MARK):
        following = lines.line(True)
        if following is None:
            raise InputError(f"the text after {MARK} has no end. Close it with {MARK}.")
        parts.append(following)
    parts[-1] = parts[-1].rstrip()[: -len(MARK)]
    text = "\n".join(parts).strip("\n")
    return f" {text}" if text.startswith("/") else text


class Piped:
    """Lines of stdin."""

    def line(self, more: bool) -> str | None:
        raw = sys.stdin.buffer.readline()
        if not raw:
            return None
        try:
            return raw.decode(sys.stdin.encoding).rstrip("\r\n").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise common.no_text(error) from error


class Typed:
    """Lines of a terminal, edited with the arrow keys where Python has `readline`, and remembered in a file."""

    def __init__(self, file: Path, complete: Callable[[str], Sequence[str]]) -> None:
        self.file = file
        self._last: str | None = None  # what was remembered last
        self._count = 0  # how many messages the file holds
        self._readline = self._prepared(complete)
        self._gathers = sys.platform != "win32" and not self._brackets

    def _prepared(self, complete: Callable[[str], Sequence[str]]) -> Any:
        """The module that edits lines, made ready; None where there is none, or no terminal to show them."""
        self._brackets = False  # whether the terminal says where a pasted text begins and ends
        if not sys.stdout.isatty():
            return None
        try:
            import readline
        except ImportError:
            return None
        if "libedit" in (readline.__doc__ or ""):
            readline.parse_and_bind("bind ^I rl_complete")
        else:
            readline.parse_and_bind("tab: complete")
            readline.parse_and_bind("set enable-bracketed-paste on")
            self._brackets = True
        readline.set_completer_delims(" ")
        readline.set_completer(lambda _, state: dict(enumerate(complete(readline.get_line_buffer()))).get(state))
        readline.set_auto_history(False)  # what is remembered is messages, not lines
        for text in self._remembered():
            readline.add_history(text)
            self._last = text
        return readline

    def line(self, more: bool) -> str | None:
        prompt = ". " if more else "> "
        try:
            found = self._read(prompt)
            with suppress(EOFError):
                while self._gathers and self._waiting():
                    found += "\n" + self._read("")
            found.encode()  # where the locale is none, bytes that are no text come in disguise
        except EOFError:
            print(file=sys.stderr)
            return None
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise common.no_text(error) from error
        return found

    def _read(self, prompt: str) -> str:
        if self._readline is None and not sys.stdout.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
            return input()
        return input(prompt)

    @staticmethod
    def _waiting() -> bool:
        """Whether more has been pasted, where the terminal does not say so."""
        import select

        return bool(select.select([sys.stdin], [], [], PAUSE)[0])

    # What is remembered -------------------------------------------------------------------------------------------

    def remember(self, text: str) -> None:
        """Put a message where the arrow keys find it, now and another time."""
        if self._readline is None or text == self._last:
            return
        self._last = text
        self._readline.add_history(text)
        with suppress(OSError):  # a folder that cannot be written to stops nobody from talking
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.touch(0o600)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")
            self._count += 1
            if self._count > MOST:
                self._remembered()

    def _remembered(self) -> list[str]:
        """The last messages of the file, which is cut down to these."""
        try:
            lines = self.file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        self._count = min(len(lines), MOST)
        if len(lines) > MOST:
            lines = lines[-MOST:]
            with suppress(OSError):
                whole = self.file.with_suffix(f".{os.getpid()}")
                whole.touch(0o600)
                whole.write_text("\n".join(lines) + "\n", "utf-8")
                whole.replace(self.file)
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return [text for text in found if isinstance(text, str)]
