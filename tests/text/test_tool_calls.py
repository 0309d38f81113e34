"""Tool calls: each family's format is read off its template, and its text becomes content and calls however it is cut."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from glassformer.ground.errors import InputError, SettingError
from glassformer.text import Tokenizer
from glassformer.text.chat.template import ChatTemplate
from glassformer.text.chat.tool_calls import (
    ChatPrompt,
    ContentDelta,
    ParsedMessage,
    ToolCallDelta,
    ToolCallFormat,
    ToolCallParser,
    chat_prompt,
    template_messages,
)
from tests.text.tool_templates import GEMMA, HERMES, LLAMA3, MISTRAL_LIST, MISTRAL_NAMED, SILENT, WITHOUT_TOOLS

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 8}},
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
Calls = list[tuple[str, Any]]


def format_of(template: str) -> ToolCallFormat:
    call_format = ToolCallFormat.of_template(template)
    assert call_format is not None
    return call_format


def parsed(template: str, text: str, size: int = 1) -> tuple[ToolCallParser, list[ContentDelta | ToolCallDelta]]:
    parser = ToolCallParser(format_of(template), TOOLS)
    deltas = [delta for at in range(0, len(text), size) for delta in parser.feed(text[at : at + size])]
    return parser, deltas + parser.finish()


def joined(deltas: list[ContentDelta | ToolCallDelta]) -> tuple[str, list[tuple[str, str, str]]]:
    """What a client makes of the deltas: the content, and the id, name and arguments of each call."""
    content, calls = "", {}
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif delta.name is not None:
            assert delta.index == len(calls)
            calls[delta.index] = (delta.id, delta.name, delta.arguments)
        else:
            call_id, name, arguments = calls[delta.index]
            assert delta.id == call_id
            calls[delta.index] = (call_id, name, arguments + delta.arguments)
    return content, list(calls.values())


CASES: dict[str, tuple[str, str, str, Calls]] = {  # name: (template, text, content, calls)
    "hermes": (
        HERMES,
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "",
        [("weather", {"city": "Paris"})],
    ),
    "hermes, two calls with text before, between and after": (
        HERMES,
        'Let me see.\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\nAnd the time.\n'
        '<tool_call>{"name":"now","arguments":{}}</tool_call>\nThere.',
        "Let me see.\nAnd the time.\nThere.",
        [("weather", {"city": "Paris"}), ("now", {})],
    ),
    "hermes, without arguments": (HERMES, '<tool_call>\n{"name": "now"}\n</tool_call>', "", [("now", {})]),
    "hermes, arguments null": (HERMES, '<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [("now", {})]),
    "hermes, arguments first": (
        HERMES,
        '<tool_call>{"arguments": {"city": "Rome"}, "name": "weather"}</tool_call>',
        "",
        [("weather", {"city": "Rome"})],
    ),
    "hermes, arguments as text": (
        HERMES,
        '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}</tool_call>',
        "",
        [("weather", {"city": "Rome"})],
    ),
    "hermes, a list, and no closing marker": (
        HERMES,
        '<tool_call>[{"name": "now"}, {"name": "weather", "arguments": {"city": "Rome"}}]',
        "",
        [("now", {}), ("weather", {"city": "Rome"})],
    ),
    "hermes, every kind of value": (
        HERMES,
        '<tool_call>{"name": "f", "arguments": {"a": [1, -2.5e3, true, null, {}, []], '
        '"b": {"c": "\\u00e9\\n\\"\t}"}}}</tool_call>',
        "",
        [("f", {"a": [1, -2500.0, True, None, {}, []], "b": {"c": 'é\n"\t}'}})],
    ),
    "hermes, less than a marker": (HERMES, "a < b, and <tool_ is none", "a < b, and <tool_ is none", []),
    "hermes, a marker alone": (HERMES, "say <tool_call>hello</tool_call> ", "say <tool_call>hello</tool_call> ", []),
    "hermes, no JSON after the name": (
        HERMES,
        '<tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>',
        '<tool_call>{"name": "weather", "arguments": {"city": Paris}}</tool_call>',
        [],
    ),
    "llama": (LLAMA3, '{"name": "weather", "parameters": {"city": "Paris"}}', "", [("weather", {"city": "Paris"})]),
    "llama, two calls": (
        LLAMA3,
        '{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "now", "parameters": {}}',
        "",
        [("weather", {"city": "Oslo"}), ("now", {})],
    ),
    "llama, python tag": (
        LLAMA3,
        '<|python_tag|>{"name": "now", "parameters": {}}',
        "",
        [("now", {})],
    ),
    "llama, a tool that it was trained with": (
        LLAMA3,
        '<|python_tag|>brave_search.call(query="who is it?", count=3)',
        "",
        [("brave_search", {"query": "who is it?", "count": 3})],
    ),
    "llama, code": (LLAMA3, "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    "llama, JSON that is no call": (LLAMA3, '{"name": "Ada", "age": 3}', '{"name": "Ada", "age": 3}', []),
    "llama, JSON after text": (
        LLAMA3,
        'Use {"name": "now"}.',
        'Use {"name": "now"}.',
        [],
    ),
    "mistral": (
        MISTRAL_LIST,
        'Yes. [TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "now", "arguments": {}}]',
        "Yes.",
        [("weather", {"city": "Paris"}), ("now", {})],
    ),
    "mistral, named": (
        MISTRAL_NAMED,
        '[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}',
        "",
        [("weather", {"city": "Paris"}), ("now", {})],
    ),
    "gemma": (
        GEMMA,
        "<start_function_call>call:weather{city:<escape>New \"York\"<escape>,days:3,more:{a:[true,<escape>x<escape>]}}"
        "<end_function_call><start_function_call>call:now{}<end_function_call>",
        "",
        [("weather", {"city": 'New "York"', "days": 3, "more": {"a": [True, "x"]}}), ("now", {})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_text_becomes_content_and_calls_however_it_is_cut(name: str) -> None:
    template, text, content, calls = CASES[name]
    for size in (1, 2, 3, 7, len(text)):
        parser, deltas = parsed(template, text, size)
        message = parser.message()
        assert message.content == content
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
        assert parser.called == bool(calls)
        if calls or "no JSON" not in name:
            assert joined(deltas) == (content, [(call.id, call.name, call.arguments) for call in message.calls])
        assert len({call.id for call in message.calls}) == len(calls)


@pytest.mark.parametrize("name", CASES)
def test_a_text_that_is_cut_off_claims_no_call_that_is_not_whole(name: str) -> None:
    template, text, _, calls = CASES[name]
    for end in range(len(text)):
        parser, deltas = parsed(template, text[:end])
        message = parser.message()
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls[: len(message.calls)]
        streamed = joined(deltas)[1]
        assert [(call.id, call.name, call.arguments) for call in message.calls] == streamed[: len(message.calls)]
        assert parser.called == (len(streamed) == len(message.calls) > 0)


def test_arguments_stream_as_they_come() -> None:
    parser = ToolCallParser(format_of(HERMES), TOOLS)
    assert parser.feed('<tool_call>{"name": "weather"') == [ToolCallDelta(0, parser_id(parser), "weather", "")]
    assert parser.feed(', "arguments": {"city": "Par') == [ToolCallDelta(0, parser_id(parser), None, '{"city": "Par')]
    assert parser.feed('is"}') == [ToolCallDelta(0, parser_id(parser), None, 'is"}')]
    assert not parser.called
    assert parser.feed("}") == []
    assert parser.called


def parser_id(parser: ToolCallParser) -> str:
    calls = parser.message().calls
    part: Any = parser._parts[-1]
    return calls[-1].id if calls else part.id


def test_a_call_that_is_cut_off_is_content_of_an_answer_that_is_not_streamed() -> None:
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pa'
    parser, deltas = parsed(HERMES, text)
    assert parser.message() == ParsedMessage(text, ())
    assert joined(deltas)[1][0][1:] == ("weather", '{"city": "Pa')


def test_deep_arguments_end_as_content() -> None:
    parser, _ = parsed(HERMES, '<tool_call>{"name": "f", "arguments": {"a": ' + "[" * 10_000)
    assert not parser.called
    assert parser.message().calls == ()


@pytest.mark.parametrize("template", [SILENT, WITHOUT_TOOLS])
def test_a_template_that_writes_no_calls_has_no_format(template: str) -> None:
    assert ToolCallFormat.of_template(template) is None


def test_formats_say_what_stands_around_a_call(qwen: Tokenizer) -> None:
    call_format = ToolCallFormat.of(qwen)
    assert call_format is not None
    assert (call_format.opening, call_format.closing, call_format.arguments_key) == (
        "<tool_call>",
        "</tool_call>",
        "arguments",
    )
    assert call_format.between == '}\n</tool_call>\n<tool_call>\n{"name": "'
    assert format_of(LLAMA3).between is None  # it refuses two
    assert format_of(LLAMA3).markers == ("<|python_tag|>",)
    assert format_of(MISTRAL_LIST).short_ids
    assert format_of(MISTRAL_NAMED).markers == ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    assert format_of(GEMMA).markers == ("<start_function_call>call:", "<end_function_call>", "<escape>")


def test_ids_are_as_short_as_the_template_asks() -> None:
    text = '[TOOL_CALLS] [{"name": "now", "arguments": {}}]'
    assert len(parsed(MISTRAL_LIST, text)[0].message().calls[0].id) == 9
    calls = [{"id": "call_0123456789abcdef", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
    messages = [
        {"role": "user", "content": "When?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": "Now."},
    ]
    _, called, result = template_messages(messages, format_of(MISTRAL_LIST))
    assert called["tool_calls"][0]["id"] == result["tool_call_id"] == "789abcdef"


def test_messages_for_a_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
    ]
    system, called = template_messages(messages)
    assert system == {"role": "system", "content": "Be brief."}
    assert called["content"] == ""
    assert "refusal" not in called
    assert called["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert called["tool_calls"][0]["id"] == "1"


@pytest.mark.parametrize("arguments", ["{", "[1]", 3])
def test_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    with pytest.raises(InputError, match="'weather'"):
        template_messages([{"role": "assistant", "tool_calls": [call]}])


# Templates without tools ------------------------------------------------------------------------------------------

REFUSES_SYSTEM = """
{%- for message in messages %}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate!') }}{% endif %}
{{- message.role + ': ' + message.content + '\\n' }}
{%- endfor %}"""
CALLED = [
    {"role": "user", "content": "How is Rome?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "Sunny."},
    {"role": "tool", "tool_call_id": "2", "content": "Warm."},
]


def plain_prompt(qwen: Tokenizer, template: str, messages: list[Any], **options: Any) -> tuple[ChatPrompt, str]:
    """A conversation with tools for a template, and as it renders it."""
    tokenizer = copy.copy(qwen)
    tokenizer.chat_template = template
    prompt = chat_prompt(tokenizer, messages, **options)
    return prompt, ChatTemplate(template).render(prompt.messages)


@pytest.mark.parametrize("template", [SILENT, WITHOUT_TOOLS, REFUSES_SYSTEM])
def test_a_template_without_tools_is_told_of_them_in_words(qwen: Tokenizer, template: str) -> None:
    prompt, text = plain_prompt(qwen, template, CALLED, tools=TOOLS)
    assert "tools" not in prompt.template
    assert json.dumps(TOOLS[0]["function"]) in text
    assert text.index(json.dumps(TOOLS[1]["function"])) < text.index("How is Rome?")
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in text
    assert "Sunny.\n</tool_response>\n<tool_response>\nWarm." in text
    roles = [message["role"] for message in prompt.messages]
    assert roles == [*([] if template == REFUSES_SYSTEM else ["system"]), "user", "assistant", "user"]


def test_what_the_instructions_ask_for_is_what_is_read_and_what_is_forced(qwen: Tokenizer) -> None:
    prompt, _ = plain_prompt(qwen, WITHOUT_TOOLS, [{"role": "system", "content": "Be brief."}, *CALLED[:1]], tools=TOOLS)
    system = prompt.messages[0]["content"]
    assert system.startswith("Be brief.\n\nYou can call functions.")
    assert '<tool_call>\n{"name": "the function\'s name", "arguments": {"a parameter": "its value"}}\n</tool_call>' in system
    assert prompt.tool_use is not None
    parser = prompt.tool_use.parser()
    text = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    parser.feed(f"I will look.\n{text}\n{text}")
    parser.finish()
    assert [call.name for call in parser.message().calls] == ["weather"] * 2
    assert parser.message().content == "I will look."
    required, _ = plain_prompt(qwen, WITHOUT_TOOLS, CALLED[:1], tools=TOOLS, tool_choice="required")
    assert [allowed(qwen, required.settings, each) for each in (text, f"{text}\n{text}", "Hi")] == [True, True, False]


def test_calls_of_earlier_turns_are_text_where_no_tools_are_left(qwen: Tokenizer) -> None:
    prompt, text = plain_prompt(qwen, WITHOUT_TOOLS, CALLED, tools=TOOLS, tool_choice="none")
    assert prompt.tool_use is None
    assert "You can call functions" not in text
    assert '"city": "Rome"' in text


# Forced calls -----------------------------------------------------------------------------------------------------


def allowed(tokenizer: Tokenizer, settings: dict[str, Any], text: str) -> bool:
    """Whether a grammar lets a text stand as a whole."""
    from glassformer.decoding.grammar import Grammar

    eos = tokenizer.eos_token_id
    guide = Grammar.compile("grammar", settings["grammar"], tokenizer, eos=[eos]).guide()
    try:
        for token in tokenizer.encode(text, add_special_tokens=False):
            guide.accept(token)
    except SettingError:
        return False
    return guide.done or bool(guide.allowed()[eos])


def test_a_required_call_is_forced_by_a_grammar(qwen: Tokenizer) -> None:
    call_format = ToolCallFormat.of(qwen)
    assert call_format is not None
    weather = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    now = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    required, single = (call_format.settings(qwen, TOOLS, "required", parallel) for parallel in (True, False))
    assert all(allowed(qwen, required, text) for text in (weather, now, f"{weather}\n{now}"))
    assert [allowed(qwen, single, text) for text in (weather, f"{weather}\n{now}")] == [True, False]
    assert not any(allowed(qwen, required, text) for text in ("Hello", weather.replace("city", "town"), weather[:-3]))
    named = call_format.settings(qwen, TOOLS, "now")
    assert [allowed(qwen, named, text) for text in (weather, now)] == [False, True]
    assert call_format.settings(qwen, TOOLS, "auto") == {}


def test_a_special_token_stands_in_a_grammar_by_its_id(qwen: Tokenizer) -> None:
    settings = format_of(HERMES.replace("tool_call>", "|im_start|>").replace("</", "<")).settings(qwen, TOOLS, "now")
    assert "<[151644]>" in settings["grammar"]
    assert allowed(qwen, settings, '<|im_start|>\n{"name": "now", "arguments": {}}\n<|im_start|>')


def test_a_choice_that_cannot_be_forced_is_refused(qwen: Tokenizer) -> None:
    with pytest.raises(InputError, match="'wether'"):
        format_of(HERMES).settings(qwen, TOOLS, "wether")
    with pytest.raises(InputError, match="'auto'"):
        format_of(GEMMA).settings(qwen, TOOLS, "required")
