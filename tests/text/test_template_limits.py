"""Templates that are too long or too deep to compile are refused, quickly and on any stack; those of the field are not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from glassformer.ground.errors import InputError, TemplateError
from glassformer.ground.ownership import stack_size
from glassformer.text import ChatTemplate
from tests.text.test_template import assistant, user
from tests.text.test_template_rendering import TEMPLATES

SMALL_STACK = 2**17  # the least that some systems give a thread
DEEP = "it is nested more than 100 levels deep"
TOO_LARGE = {
    "chained filters": ("{{ a" + "|trim" * 7000 + " }}", DEEP),
    "more chained filters": ("{{ a" + "|trim" * 20_000 + " }}", "it has more than 30,000 tokens"),
    "elifs": ("{% if a %}" + "{% elif b %}x" * 2000 + "{% endif %}", "it has a chain of more than 100 elif"),
    "additions": ("{{ " + "+".join(["a"] * 5000) + " }}", DEEP),
    "subscripts": ("{{ a" + "[0]" * 4000 + " }}", DEEP),
    "attributes": ("{{ a" + ".b" * 5000 + " }}", DEEP),
    "calls": ("{{ a" + "()" * 5000 + " }}", DEEP),
    "brackets": ("{{ " + "[" * 5000 + "]" * 5000 + " }}", DEEP),
    "negations": ("{{ " + "not " * 9000 + "a }}", DEEP),
    "conditions": ("{{ " + "a if b else " * 3000 + "c }}", DEEP),
    "blocks": ("{% if a %}" * 500 + "{% endif %}" * 500, DEEP),
    "text": ("x" * 200_001, "it is longer than 200,000 characters"),
    "branches of many names": (
        "".join(f"{{% set a{i}=1 %}}" for i in range(1200)) + "{% if a %}{% endif %}" * 1200,
        "its 1,201 names and 2,400 branches are too many together",
    ),
}


def on_small_stack(function: Callable[[], Any]) -> Any:
    """What a function returns or raises in a thread with a small stack."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=call)
    with stack_size(SMALL_STACK):
        thread.start()
    thread.join()
    return results[0]


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_template_too_large_to_compile_is_refused_on_a_small_stack(name: str) -> None:
    source, reason = TOO_LARGE[name]
    error = on_small_stack(lambda: ChatTemplate(source).render([user("Hi!")]))
    assert isinstance(error, TemplateError)
    assert str(error) == f"the chat template cannot be parsed: {reason}. Pass another with chat_template=…."


WITHIN = {
    "filters": "{{ 'a'" + "|trim" * 90 + " }}",
    "additions": "{{ " + "+".join(["'a'"] * 90) + " }}",
    "elifs": "{% if false %}" + "{% elif false %}x" * 100 + "{% endif %}",
    "conditions": "{{ " + "'a' if false else " * 90 + "'c' }}",
    "blocks": "{% if true %}" * 90 + "{% endif %}" * 90,
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(38) }}",
}


@pytest.mark.parametrize("name", WITHIN)
def test_a_template_within_the_limits_renders_on_a_small_stack(name: str) -> None:
    assert isinstance(on_small_stack(lambda: ChatTemplate(WITHIN[name]).render([user("Hi!")])), str)


def test_a_long_ordinary_template_compiles() -> None:
    source = "\n".join(text for text in TEMPLATES.values() if "macro" not in text)
    source *= 60_000 // len(source) + 1
    assert len(source) > 60_000
    assert "messages" in ChatTemplate(source).variables


def test_messages_nested_too_deeply() -> None:
    nested: Any = "x"
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(InputError, match="150 levels"):
        ChatTemplate("{{ messages }}").render([user(nested)])
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InputError, match="150 levels"):
        ChatTemplate("{{ messages }}").render([user(circle)])


PLAIN = "{% for m in messages %}\n{{ '<' + m.role + '>' + m['content'] }}\n{% endfor %}"
STRIPPING = "{% for m in messages %}{{ m.content.strip() }}{% endfor %}"
CALLS = "{% for m in messages %}{% for c in m.tool_calls %}{{ '' + c.function.name }}{% endfor %}{% endfor %}"
PARTS = [{"type": "text", "text": "a"}]
EMPTY_CALL = [{"function": {}}]
LISTED = "message 1 (assistant) has {} as its 'content', where text is needed in its line {}. "
LISTED += "Give it text: {{'role': 'assistant', 'content': '…'}}."
ADD = "which is needed in its line {}. Add it to the message."
PASS = "Pass it as a variable, or another template with chat_template=…."
EXPLAINED = [
    (PLAIN, {"role": "assistant"}, "message 1 (assistant) has no 'content', " + ADD.format(2)),
    (PLAIN, assistant(None), LISTED.format("None", 2)),
    (PLAIN, assistant(PARTS), LISTED.format("a list", 2)),
    (PLAIN, assistant(3), LISTED.format("a number", 2)),
    (STRIPPING, assistant(["a"]), LISTED.format("a list", 1)),
    (STRIPPING, assistant(None), LISTED.format("None", 1)),
    ("{{ '' + nowhere }}", assistant(""), "'nowhere' has no value in its line 1. " + PASS),
    (
        CALLS,
        assistant("", tool_calls=EMPTY_CALL),
        "message 1 (assistant), in its ['tool_calls'][0]['function'], has no 'name', " + ADD.format(1),
    ),
]


@pytest.mark.parametrize(("source", "message", "reason"), EXPLAINED)
def test_what_the_template_misses_in_a_message_is_named(source: str, message: dict[str, Any], reason: str) -> None:
    with pytest.raises(TemplateError) as raised:
        ChatTemplate(source).render([user("Hi!"), message])
    assert str(raised.value) == f"the chat template cannot render the conversation: {reason}"
