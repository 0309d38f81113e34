"""How a model writes tool calls, found out by letting its chat template write some.

Families differ: `<tool_call>{"name": …, "arguments": …}</tool_call>` (Hermes, Qwen), the object alone (Llama 3), a list
after a special token (Mistral), the name before its arguments (newer Mistral), keys and texts that are no JSON (Gemma). A
template that takes tools also writes the calls of earlier turns, so a conversation with a call of known words shows the
format, whatever the model's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, Self

from glassformer.ground.errors import InputError, TemplateError, did_you_mean
from glassformer.text.chat.template import ChatTemplate
from glassformer.text.tokenizer import Tokenizer

NAME, KEY, VALUE, CONTENT = "probe_function", "probe_key", "probe_value", "Probed content Z"
SHORT_ID = 9  # characters of an id, where a template asks for short ones
IDS = ("call_probe_0123456789", "probe0123")  # some templates take ids of nine letters and digits alone
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "A probe."}},
            "required": [KEY],
        },
    },
}
JSON_ARGUMENTS = re.compile(rf'\{{\s*"{KEY}":\s*"{VALUE}"\s*\}}')
UNQUOTED_ARGUMENTS = re.compile(rf"\{{{KEY}:(?P<quote>[^\s{{}}]*?){VALUE}(?P=quote)\}}")
OBJECT_OPENING = re.compile(r'\s*(?P<opening>[^{}]*?)\s*\[?\s*\{\s*"(?P<key>\w+)":\s*"')
OBJECT_MIDDLE = re.compile(r'"\s*,\s*"(?P<key>\w+)":\s*')
ID = re.compile(r'\s*,\s*"\w+":\s*"[^"]*"')  # of a call; models need not repeat what they were shown
ESCAPE = "<escape>"  # what Gemma puts around texts
BRACKETED = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
MARKER = re.compile(rf"{BRACKETED.pattern}|\S+")
PYTHON_TAG = "<|python_tag|>"  # what Llama 3 may put before a call that its template writes without


@dataclass(frozen=True)
class ToolCallFormat:
    """What stands around and inside a tool call."""

    opening: str  # the marker before a call, or before a list of them; empty where the JSON stands alone
    closing: str  # the marker after it
    before: str  # all of the text before the name of the first call
    middle: str  # between a name and its arguments
    between: str | None  # between the arguments of a call and the name of the next; None: one call at a time
    after: str  # after the last call's arguments
    arguments_key: str | None = None  # the key of a call's arguments; None where they follow the name
    name_key: str = "name"
    quote: str = ""  # what texts stand between where the arguments are no JSON
    name_markers: tuple[str, ...] = ()  # what may follow a name where its arguments do: `[CALL_ID]`, `[ARGS]`
    short_ids: bool = False  # whether the ids of calls have `SHORT_ID` characters
    extra_openings: tuple[str, ...] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self | None:
        """The format of a tokenizer's chat template; None where it takes no tools, or writes no call that can be read."""
        if not tokenizer.chat_template:
            return None
        source = tokenizer.get_chat_template(tools=[PROBE_TOOL])
        return cls.of_template(source, json.dumps(tokenizer.special_tokens_map))

    @classmethod
    @lru_cache(maxsize=32)
    def of_template(cls, source: str, special_tokens: str = "{}") -> Self | None:
        """The format of a template's text; `special_tokens`: a tokenizer's, as JSON."""
        template = ChatTemplate(source)
        if "tools" not in template.variables:
            return None
        for call_id, empty in product(IDS, ("", None)):
            probe = _Probe(template, json.loads(special_tokens), call_id, empty)
            try:
                written = probe.calls(1)
            except TemplateError:
                continue
            if written is None:
                return None
            try:
                two = probe.calls(2)
            except TemplateError:  # some say that they take one call at a time
                two = None
            parts = _parts(written, two)
            extra = (PYTHON_TAG,) if PYTHON_TAG in source else ()
            return None if parts is None else cls(**parts, short_ids=call_id == IDS[1], extra_openings=extra)
        return None

    @property
    def openings(self) -> tuple[str, ...]:
        """Every marker that a call can begin with."""
        return tuple(filter(None, (self.opening, *self.extra_openings)))

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that must stay visible when tokens become text, special or not."""
        return tuple(filter(None, (*self.openings, self.closing, self.quote, *self.name_markers)))

    @property
    def separator(self) -> str:
        """What ends a name where its arguments follow it, as `[ARGS]` does."""
        return self.middle.strip() if self.arguments_key is None else ""

    # Forcing a call -------------------------------------------------------------------------------------------------

    def settings(
        self, tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]], choice: str, parallel: bool = True
    ) -> dict[str, Any]:
        """The settings that make a model call a tool.

        `choice`: 'required', or the name of one of the tools; with 'auto' and 'none' nothing is forced. `parallel`: whether
        several calls may come.
        """
        if choice in ("auto", "none"):
            return {}
        names = [tool["function"]["name"] for tool in tools]
        if choice != "required" and choice not in names:
            raise InputError(f"tool_choice names {choice!r}, which is none of the tools.{did_you_mean(choice, names)}")
        if self.quote:
            raise InputError("this model's calls are no JSON, so none can be forced. Use tool_choice 'auto'.")
        chosen = tools if choice == "required" else [tool for tool in tools if tool["function"]["name"] == choice]
        special = tokenizer.special_added_tokens
        before, middle, after = (_literal(text, special) for text in (self.before, self.middle, self.after))
        several = parallel and choice == "required" and self.between is not None
        more = f" ({_literal(self.between or '', special)} call)*" if several else ""
        rules = [
            f"start: {before} call{more} {after}",
            "call: " + " | ".join(f"call_{index}" for index in range(len(chosen))),
        ]
        for index, tool in enumerate(chosen):
            schema = json.dumps(_arguments_schema(tool["function"].get("parameters")), ensure_ascii=False)
            name = json.dumps(tool["function"]["name"], ensure_ascii=False)
            rules += [f"call_{index}: {name} {middle} arguments_{index}", f"arguments_{index}: %json {schema}"]
        return {"grammar": "\n".join(rules)}


@dataclass(frozen=True)
class _Probe:
    """A template, and how it is asked to write calls."""

    template: ChatTemplate
    special_tokens: Mapping[str, Any]
    call_id: str
    empty: str | None  # the content of a message that has calls alone

    def calls(self, count: int) -> str | None:
        """What the template writes for a message of this many calls; None where it leaves them out."""
        function = {"name": NAME, "arguments": {KEY: VALUE}}
        calls = [{"id": self.call_id, "type": "function", "function": function}] * count
        plain = self._render({"content": CONTENT})
        written = self._render({"content": self.empty, "tool_calls": calls})
        start = _common_prefix(plain, written)
        end = _common_prefix(plain[::-1], written[::-1])
        text = written[start : len(written) - end]
        return text if NAME in text else None

    def _render(self, message: Mapping[str, Any]) -> str:
        messages = [{"role": "user", "content": "A probe."}, {"role": "assistant", **message}]
        return self.template.render(messages, tools=[PROBE_TOOL], special_tokens=self.special_tokens)


def _parts(written: str, two: str | None) -> dict[str, Any] | None:
    """What stands around the name and the arguments of a call, and the fields that follow from it."""
    arguments = JSON_ARGUMENTS.search(written) or UNQUOTED_ARGUMENTS.search(written)
    before, _, rest = written.partition(NAME)
    if arguments is None or arguments.start() < len(before):
        return None
    middle, after = rest[: arguments.start() - len(before) - len(NAME)], written[arguments.end() :]
    parts: dict[str, Any] = {"before": before.lstrip(), "quote": ""}
    if arguments.re is UNQUOTED_ARGUMENTS:
        parts["quote"] = arguments["quote"] or ESCAPE
    opening, key = OBJECT_OPENING.fullmatch(before), OBJECT_MIDDLE.fullmatch(middle)
    if opening and key:
        parts |= {"name_key": opening["key"], "arguments_key": key["key"], "opening": opening["opening"]}
        after = ID.sub("", after)
        closing = MARKER.match(after.strip().removeprefix("}").lstrip().removeprefix("]").lstrip())
    elif before.strip() and "{" not in before + middle:
        parts["name_markers"] = tuple(BRACKETED.findall(middle))
        middle = parts["name_markers"][-1] if parts["name_markers"] else middle  # an id may stand before the last marker
        parts["opening"] = before.strip()
        closing = MARKER.match(after.strip())
    else:
        return None
    between = None
    if two is not None and two.count(NAME) == 2:
        next_call = re.search(rf"{re.escape(arguments[0])}(.*?){NAME}", two, re.DOTALL)
        between = ID.sub("", next_call[1], count=1) if next_call else None
    return parts | {"middle": middle, "between": between, "after": after.rstrip(), "closing": closing[0] if closing else ""}


def _common_prefix(first: str, second: str) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _literal(text: str, special: Mapping[str, int]) -> str:
    """A text in a Lark grammar, where special tokens stand by their ids."""
    pattern = "|".join(re.escape(token) for token in sorted(special, key=len, reverse=True))
    pieces = re.split(f"({pattern})", text) if pattern else [text]
    return " ".join(f"<[{special[piece]}]>" if piece in special else json.dumps(piece) for piece in pieces if piece) or '""'


def _arguments_schema(parameters: Any) -> dict[str, Any]:
    """A tool's parameters as a schema that only an object fits, on one line as models write it."""
    schema = dict(parameters) if isinstance(parameters, Mapping) and parameters else {"additionalProperties": False}
    schema.setdefault("type", "object")
    schema["x-guidance"] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return schema
