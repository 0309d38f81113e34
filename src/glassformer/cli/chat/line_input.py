r'''Messages typed at a terminal, or piped.

A line is a message. One that ends in a backslash continues on the next line, and all lines between `"""` and `"""` are one
message. A slash at the beginning makes it a command; with a space before the slash, or in quotes, it is a message.
'''

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from glassformer.cli.text_input import not_text_error
from glassformer.ground.errors import InputError, WriteError
from glassformer.ground.files import write_text

QUOTES = '"""'
MAX_HISTORY = 1000  # messages
PASTE_SECONDS = 0.02  # lines that come faster one after the other were pasted


class LineSource(Protocol):
    """Where lines come from."""

    def line(self, more: bool) -> str | None:
        """The next line, or None at the end; `more`: it continues a message."""


def read_message(lines: LineSource) -> str | None:
    """The next message or command, or None at the end."""
    first = lines.line(False)
    if first is None:
        return None
    if first.lstrip().startswith(QUOTES):
        return _block(lines, first.lstrip()[len(QUOTES) :])
    parts = [first]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        following = lines.line(True)
        if following is None:
            break
        parts.append(following)
    return "\n".join(parts)


def _block(lines: LineSource, first: str) -> str:
    parts = [first]
    while not parts[-1].rstrip().endswith(QUOTES):
        following = lines.line(True)
        if following is None:
            raise InputError(f"the text after {QUOTES} has no end. Close it with {QUOTES}.")
        parts.append(following)
    parts[-1] = parts[-1].rstrip()[: -len(QUOTES)]
    text = "\n".join(parts).strip("\n")
    return f" {text}" if text.startswith("/") else text


class PipedLines:
    """Lines of stdin."""

    def line(self, more: bool) -> str | None:
        raw = sys.stdin.buffer.readline()
        if not raw:
            return None
        try:
            return raw.decode(sys.stdin.encoding).rstrip("\r\n").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise not_text_error(error) from error


class TerminalLines:
    """Lines typed at a terminal, edited with `readline` where Python has it, and kept in a history file."""

    def __init__(self, file: Path, complete: Callable[[str], Sequence[str]]) -> None:
        self.file = file
        self._last: str | None = None  # the last message of the history
        self._count = 0  # messages in the file
        self._readline = self._set_up_readline(complete)
        self._joins_pasted = sys.platform != "win32" and not self._bracketed_paste

    def _set_up_readline(self, complete: Callable[[str], Sequence[str]]) -> Any:
        """The configured `readline` module; None if there is none, or no terminal on stdout."""
        self._bracketed_paste = False  # whether the terminal marks the beginning and end of a pasted text
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
            self._bracketed_paste = True
        readline.set_completer_delims(" ")
        readline.set_completer(lambda _, state: dict(enumerate(complete(readline.get_line_buffer()))).get(state))
        readline.set_auto_history(False)  # the history is of messages, not lines
        for text in self._read_history():
            readline.add_history(text)
            self._last = text
        return readline

    def line(self, more: bool) -> str | None:
        prompt = ". " if more else "> "
        try:
            line = self._read(prompt)
            with suppress(EOFError):
                while self._joins_pasted and self._more_pasted():
                    line += "\n" + self._read("")
            line.encode()  # bytes that are no text may have come in as surrogates
        except EOFError:
            print(file=sys.stderr)
            return None
        except (UnicodeDecodeError, UnicodeEncodeError) as error:
            raise not_text_error(error) from error
        return line

    def _read(self, prompt: str) -> str:
        if self._readline is None and not sys.stdout.isatty():
            sys.stderr.write(prompt)
            sys.stderr.flush()
            return input()
        return input(prompt)

    @staticmethod
    def _more_pasted() -> bool:
        """Whether more lines were pasted, where the terminal does not mark them."""
        import select

        return bool(select.select([sys.stdin], [], [], PASTE_SECONDS)[0])

    # History ------------------------------------------------------------------------------------------------------

    def remember(self, text: str) -> None:
        """Add a message to the history, in this chat and in the file."""
        if self._readline is None or text == self._last:
            return
        self._last = text
        self._readline.add_history(text)
        with suppress(OSError):  # a chat works without its history file
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.touch(0o600)
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(text) + "\n")
            self._count += 1
            if self._count > MAX_HISTORY:
                self._read_history()

    def _read_history(self) -> list[str]:
        """The last messages of the file, which is truncated to these."""
        try:
            lines = self.file.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        self._count = min(len(lines), MAX_HISTORY)
        if len(lines) > MAX_HISTORY:
            lines = lines[-MAX_HISTORY:]
            with suppress(WriteError):
                write_text(self.file, "\n".join(lines) + "\n", mode=0o600)
        messages = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, str)]
