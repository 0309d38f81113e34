"""A model's text, read as it grows into content and tool calls.

The reader is a coroutine that takes one character at a time, so that the grammar of a call stands here as ordinary
recursive code and still can stop anywhere. Arguments are given out as they come, and only while they are valid JSON: a call
that is cut off or breaks the syntax is never complete.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from glassformer.text.chat.tool_calls.format import SHORT_ID, ToolCallFormat
from glassformer.text.streaming import overlap

SPACE = " \t\r\n"
SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
FUNCTION_NAME = re.compile(r"[^\s\[\]{}<>\"]{1,256}")
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})  # models take one for the other
MAX_DEPTH = 64  # of arguments

Reader: TypeAlias = Generator[None, str, None]
TextReader: TypeAlias = Generator[None, str, str]


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """A further piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A further piece of a call: its name comes first and once, then its arguments, as JSON text to be joined."""

    index: int
    id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str  # a JSON object

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's API and chat templates have it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    content: str
    calls: tuple[ToolCall, ...]

    def to_dict(self) -> dict[str, Any]:
        """As OpenAI's API has it: with calls, no content is null."""
        if not self.calls:
            return {"role": "assistant", "content": self.content, "refusal": None}
        calls = [call.to_dict() for call in self.calls]
        return {"role": "assistant", "content": self.content or None, "refusal": None, "tool_calls": calls}


@dataclass
class _Call:
    """A call that is being read."""

    index: int
    id: str
    name: str
    arguments: str = ""
    complete: bool = False
    source: str = ""  # its text as the model wrote it


class _Broken(Exception):
    """What was taken for a call is none."""


def random_key(index: int) -> str:
    """What the id of a call is made of, where no two calls may have the same."""
    return secrets.token_hex(12)


class ToolCallParser:
    """Pieces of text in, deltas out; made for one text.

    `call_key`: 24 letters and digits for the call of an index, of which its id is made.
    """

    def __init__(
        self,
        call_format: ToolCallFormat,
        tools: Sequence[Mapping[str, Any]] = (),
        call_key: Callable[[int], str] = random_key,
    ) -> None:
        self._format = call_format
        self._call_key = call_key
        self._names = {tool["function"]["name"] for tool in tools}
        self._deltas: list[ContentDelta | ToolCallDelta] = []
        self._parts: list[str | _Call] = []  # the text so far
        self._call: _Call | None = None  # the call that is being read
        self._source = ""  # what was read since the last complete call
        self._ahead = ""  # a character that was looked at and not taken
        self._held = ""  # content that may turn out to be a marker, or white space before one
        self._reader = self._read()
        next(self._reader)

    def feed(self, piece: str) -> list[ContentDelta | ToolCallDelta]:
        """What a further piece of the text adds."""
        for character in piece:
            self._reader.send(character)
        return self._take_deltas()

    def finish(self) -> list[ContentDelta | ToolCallDelta]:
        """What was held back, at the end of the text."""
        self._reader.close()
        if self._source:
            self._abandon()
        elif not (self._held.isspace() and self._after_call):
            self._add_content(self._held)
        self._held = ""
        return self._take_deltas()

    def message(self) -> ParsedMessage:
        """The whole text: its complete calls, and as content all the rest."""
        calls = [part for part in self._parts if isinstance(part, _Call)]
        whole = tuple(ToolCall(call.id, call.name, call.arguments) for call in calls if call.complete)
        texts = (part if isinstance(part, str) else "" if part.complete else part.source for part in self._parts)
        return ParsedMessage("".join(texts), whole)

    @property
    def called(self) -> bool:
        """Whether the text has calls and all of them are complete."""
        calls = [part for part in self._parts if isinstance(part, _Call)]
        return bool(calls) and all(call.complete for call in calls)

    # What is given out --------------------------------------------------------------------------------------------

    def _take_deltas(self) -> list[ContentDelta | ToolCallDelta]:
        """The new deltas, neighbours of a kind joined."""
        joined: list[ContentDelta | ToolCallDelta] = []
        for delta in self._deltas:
            last = joined[-1] if joined else None
            if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
                joined[-1] = ContentDelta(last.text + delta.text)
            elif isinstance(delta, ToolCallDelta) and isinstance(last, ToolCallDelta) and delta.name is None:
                joined[-1] = ToolCallDelta(last.index, last.id, last.name, last.arguments + delta.arguments)
            else:
                joined.append(delta)
        self._deltas.clear()
        return joined

    def _add_content(self, text: str) -> None:
        if text:
            self._deltas.append(ContentDelta(text))
            self._parts.append(text)

    def _begin_call(self, name: str) -> None:
        index = sum(isinstance(part, _Call) for part in self._parts)
        key = self._call_key(index)
        call_id = key[:SHORT_ID] if self._format.short_ids else f"call_{key}"
        self._call = _Call(index, call_id, name)
        self._parts.append(self._call)
        self._deltas.append(ToolCallDelta(index, call_id, name, ""))

    def _add_arguments(self, text: str) -> None:
        assert self._call is not None
        self._call.arguments += text
        self._deltas.append(ToolCallDelta(self._call.index, self._call.id, None, text))

    def _complete_call(self) -> None:
        assert self._call is not None
        if not self._call.arguments:
            self._add_arguments("{}")
        self._call.complete = True
        self._call, self._source = None, ""

    def _abandon(self) -> None:
        """Take what was read for content: all of it, or what follows the part of a call that was given out."""
        if self._call is None:
            self._add_content(self._source)
        else:
            self._call.source = self._source
        self._call, self._source = None, ""

    @property
    def _after_call(self) -> bool:
        return bool(self._parts) and isinstance(self._parts[-1], _Call) and self._parts[-1].complete

    # Characters ---------------------------------------------------------------------------------------------------

    def _peek(self) -> TextReader:
        if not self._ahead:
            self._ahead = yield
        return self._ahead

    def _next(self) -> TextReader:
        character = yield from self._peek()
        self._ahead = ""
        self._source += character
        return character

    def _skip_space(self) -> Reader:
        while (yield from self._peek()) in SPACE:
            yield from self._next()

    def _expect(self, text: str) -> Reader:
        for character in text:
            if (yield from self._peek()) != character:
                raise _Broken
            yield from self._next()

    # The text -----------------------------------------------------------------------------------------------------

    def _read(self) -> Reader:
        """Content and calls in turn, without an end."""
        alone = not self._format.opening  # a call without a marker stands at the beginning, or after another call
        while True:
            self._held += yield from self._peek()
            self._ahead = ""
            opening = next((marker for marker in self._format.openings if self._held.endswith(marker)), None)
            if opening is not None:
                before, marker = self._held.removesuffix(opening), opening
            elif alone and self._held.lstrip() == "{" and (not self._parts or self._after_call):
                before, marker, self._ahead = self._held[:-1], "", "{"
            elif self._after_call and self._held.lstrip() == (self._format.closing or (";" if alone else None)):
                self._held = ""  # the end of a call; Llama 3, whose calls have none, puts a semicolon between two
                continue
            else:
                self._release()
                continue
            text = before.rstrip()
            self._add_content(text)
            self._held, self._source = "", before[len(text) :] + marker
            try:
                yield from self._read_calls(marked=opening is not None)
            except _Broken:
                self._abandon()

    def _release(self) -> None:
        """Give out held content, up to what may be the beginning of a marker, and the white space before that."""
        markers = (*self._format.openings, *([self._format.closing] if self._after_call and self._format.closing else []))
        size = max((overlap(self._held, marker) for marker in markers), default=0)
        text = self._held[: len(self._held) - size].rstrip()
        self._add_content(text)
        self._held = self._held[len(text) :]

    def _read_calls(self, marked: bool) -> Reader:
        """The calls after a marker, or one that stands alone."""
        yield from self._skip_space()
        first = yield from self._peek()
        if first == "[":
            yield from self._next()
            while True:
                yield from self._skip_space()
                yield from self._read_object(marked)
                yield from self._skip_space()
                separator = yield from self._peek()
                if separator not in ",]":
                    raise _Broken
                yield from self._next()
                if separator == "]":
                    break
            self._source = ""
        elif first == "{":
            yield from self._read_object(marked)
        elif self._format.arguments_key is None:
            yield from self._read_named()
        else:
            yield from self._read_python_call()

    def _read_object(self, marked: bool) -> Reader:
        """`{"name": …, "arguments": …}`, in any order; what else is in it is skipped."""
        yield from self._expect("{")
        name: str | None = None
        early: list[str] = []  # arguments that come before the name
        yield from self._skip_space()
        while (yield from self._peek()) != "}":
            key = yield from self._read_json_text()
            yield from self._read_colon()
            if key == self._format.name_key and name is None:
                name = yield from self._read_json_text()
                if not FUNCTION_NAME.fullmatch(name) or not (marked or name in self._names):
                    raise _Broken
                self._begin_call(name)
                for text in early:
                    self._add_arguments(text)
            elif key == self._format.arguments_key or key in ARGUMENT_KEYS:
                yield from self._read_arguments(early.append if name is None else self._add_arguments)
            else:
                yield from self._read_value(lambda text: None)
            yield from self._skip_space()
            if (yield from self._peek()) == ",":
                yield from self._next()
                yield from self._skip_space()
            elif (yield from self._peek()) != "}":
                raise _Broken
        yield from self._next()
        if name is None:
            raise _Broken
        self._complete_call()

    def _read_named(self) -> Reader:
        """A name and then its arguments."""
        separator, name = self._format.separator, ""
        while not (name.endswith(separator) if separator else (yield from self._peek()) == "{"):
            name += yield from self._next()
        name = name.removesuffix(separator).partition("[")[0].strip()  # an id may follow it in brackets
        if not FUNCTION_NAME.fullmatch(name):
            raise _Broken
        self._begin_call(name)
        yield from self._skip_space()
        yield from self._read_arguments(self._add_arguments)
        self._complete_call()

    def _read_python_call(self) -> Reader:
        """`name.call(key="value", …)`: how Llama 3 calls the tools that it was trained with."""
        name = ""
        while not name.endswith(".call("):
            name += yield from self._next()
            if not FUNCTION_NAME.fullmatch(name):
                raise _Broken
        self._begin_call(name.removesuffix(".call("))
        self._add_arguments("{")
        yield from self._skip_space()
        while (yield from self._peek()) != ")":
            key = ""
            while (yield from self._peek()) != "=":
                key += yield from self._next()
                if not key.isidentifier():
                    raise _Broken
            yield from self._next()
            self._add_arguments(f'"{key}": ')
            yield from self._read_value(self._add_arguments)
            yield from self._skip_space()
            if (yield from self._peek()) == ",":
                yield from self._next()
                yield from self._skip_space()
                self._add_arguments(", ")
            elif (yield from self._peek()) != ")":
                raise _Broken
        yield from self._next()
        self._add_arguments("}")
        self._complete_call()

    # Arguments ----------------------------------------------------------------------------------------------------

    def _read_arguments(self, write: Callable[[str], None]) -> Reader:
        """An object, given out as it comes; or one as text inside a text, or null."""
        first = yield from self._peek()
        if first == "{":
            yield from self._read_value(write)
            return
        pieces: list[str] = []
        yield from self._read_value(pieces.append)
        value = json.loads("".join(pieces))
        try:
            value = json.loads(value) if isinstance(value, str) and value.strip() else value or None
        except ValueError as error:
            raise _Broken from error
        if value is not None:
            if not isinstance(value, dict):
                raise _Broken
            write(json.dumps(value, ensure_ascii=False))

    def _read_value(self, write: Callable[[str], None], depth: int = 0) -> Reader:
        """A JSON value, written as it is read."""
        if depth > MAX_DEPTH:
            raise _Broken
        yield from self._skip_space()
        first = yield from self._peek()
        if first in "{[":
            yield from self._read_container(write, depth)
        elif first == '"':
            yield from self._read_text(write)
        elif self._format.quote and first == self._format.quote[0]:
            yield from self._read_quoted(write)
        else:
            scalar = ""
            while (yield from self._peek()) not in ",]})" + SPACE:
                scalar += yield from self._next()
            if SCALAR.fullmatch(scalar):
                write(scalar)
            elif self._format.quote and scalar:  # where texts stand between markers, models leave them out at times
                write(json.dumps(scalar, ensure_ascii=False))
            else:
                raise _Broken

    def _read_container(self, write: Callable[[str], None], depth: int) -> Reader:
        opening = yield from self._next()
        closing = "}" if opening == "{" else "]"
        write(opening)
        yield from self._skip_space()
        while (yield from self._peek()) != closing:
            if opening == "{":
                yield from self._read_key(write)
                yield from self._read_colon()
                write(": ")
            yield from self._read_value(write, depth + 1)
            yield from self._skip_space()
            if (yield from self._peek()) == ",":
                yield from self._next()
                yield from self._skip_space()
                if (yield from self._peek()) == closing:
                    raise _Broken
                write(", ")
            elif (yield from self._peek()) != closing:
                raise _Broken
        write((yield from self._next()))

    def _read_key(self, write: Callable[[str], None]) -> Reader:
        if (yield from self._peek()) == '"':
            yield from self._read_text(write)
            return
        key = ""
        while self._format.quote and (yield from self._peek()) not in ":,{}[]":
            key += yield from self._next()
        if not key.strip():
            raise _Broken
        write(json.dumps(key.strip(), ensure_ascii=False))

    def _read_colon(self) -> Reader:
        yield from self._skip_space()
        yield from self._expect(":")
        yield from self._skip_space()

    def _read_text(self, write: Callable[[str], None]) -> Reader:
        """A text between double quotes; a control character in it, which JSON does not have, is escaped."""
        yield from self._expect('"')
        write('"')
        while (character := (yield from self._next())) != '"':
            if character == "\\":
                character += yield from self._next()
                if character[1] == "u":
                    for _ in range(4):
                        character += yield from self._next()
                if not re.fullmatch(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})', character):
                    raise _Broken
                write(character)
            else:
                write(character if character >= " " else json.dumps(character)[1:-1])
        write('"')

    def _read_json_text(self) -> TextReader:
        pieces: list[str] = []
        yield from self._read_text(pieces.append)
        text: str = json.loads("".join(pieces))
        return text

    def _read_quoted(self, write: Callable[[str], None]) -> Reader:
        """A text between markers."""
        quote, text = self._format.quote, ""
        yield from self._expect(quote)
        write('"')
        while not text.endswith(quote):
            text += yield from self._next()
            size = overlap(text, quote)
            if not size and not text.endswith(quote):
                write(json.dumps(text, ensure_ascii=False)[1:-1])
                text = ""
        write(json.dumps(text.removesuffix(quote), ensure_ascii=False)[1:-1] + '"')
