"""Templates in the styles of the field's families, each rendered as the reference renders it, over odd conversations."""

from __future__ import annotations

import dataclasses
import enum
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.ground.errors import GlassError, InputError, InputTypeError, TemplateError
from glassformer.text import ChatTemplate, Tokenizer
from tests.sweeps import examples
from tests.text.test_template import CALL, PLAIN, TOOLED, WEATHER, Message, assistant, system, tool, user
from tests.text.texts import texts

FOLDER = Path(__file__).parent / "templates"
TEMPLATES = {path.stem: path.read_bytes().decode() for path in sorted(FOLDER.glob("*.jinja"))}
MEASURING = {TEMPLATES["text_methods"]}  # counts letters, so the reference's mark and ours can be told apart
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
DOCUMENTS = [
    {"title": 'A "title" & more', "text": "  Some text.\n"},
    {"text": "", "contents": " below ", "parts": [{"name": "p", "lines": ["1", "2 🌦"]}, {"name": "q", "lines": []}]},
]
PICTURE = [{"type": "image"}, {"type": "text", "text": " What is this? \n"}]
ODD: dict[str, list[Message]] = {
    "parts": [user(PICTURE), assistant([{"type": "text", "text": "A cat. "}, {"type": "image"}])],
    "nothing as content": [user("Weather?"), assistant(None, tool_calls=[CALL]), tool("")],
    "no content": [user("a"), {"role": "assistant", "reasoning": "hm"}],
    "thoughts by another name": [user("a"), assistant("b", thinking="c"), user("d"), assistant("e", reasoning="f\n")],
    "an unknown role": [{"role": "narrator", "content": "Once."}],
    "names": [{"role": "user", "name": "Ann", "content": "I am Ann."}, assistant("Hi Ann.", name="Bo")],
    "two systems": [system("a"), system("b"), user("c")],
    "markup of templates": [user("{{ 1 + 1 }}{% endfor %}</s>[/ASK]<|over|>{# #}"), assistant("<end>\n<begin>user\n")],
}  # fmt: skip
CONVERSATIONS = PLAIN | TOOLED | ODD


def theirs(source: str, conversation: Any, **options: Any) -> str | None:
    """What the reference renders, or None where it raises."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        return str(render_jinja_template([conversation], chat_template=source, **options)[0][0])
    except Exception:
        return None


def ours(source: str, conversation: Any, **options: Any) -> str | None:
    tokens = {name: options.pop(name) for name in TOKENS if name in options}
    try:
        return ChatTemplate(source).render(conversation, special_tokens=tokens, **options)
    except GlassError:
        return None


def agree(source: str, conversation: Any, **options: Any) -> str | None:
    if options.get("continue_final_message") and source in MEASURING:
        return None
    expected = theirs(source, conversation, **options, **TOKENS)
    if expected is not None:  # where the last message is said twice, the reference leaves its mark at the first
        expected = expected.replace("CONTINUE_FINAL_MESSAGE_TAG ", "").replace("CONTINUE_FINAL_MESSAGE_TAG", "")
    assert ours(source, conversation, **options, **TOKENS) == expected, (conversation, options)
    return expected


@pytest.mark.parametrize("name", TEMPLATES)
def test_conversations_render_like_the_reference(name: str) -> None:
    rendered = 0
    for conversation in CONVERSATIONS.values():
        for tools, documents in ((None, None), ([WEATHER, WEATHER], DOCUMENTS), ([], [])):
            for more in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}):
                found = agree(TEMPLATES[name], conversation, tools=tools, documents=documents, **more)
                rendered += found is not None
        agree(TEMPLATES[name], conversation, continue_final_message="reasoning_content")
    assert rendered > 25


content = (
    texts
    | st.none()
    | st.lists(st.just({"type": "image"}) | st.builds(lambda t: {"type": "text", "text": t}, texts), max_size=3)
)
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "tool"]), "content": content},
    optional={"reasoning_content": texts | st.none(), "tool_calls": st.just([CALL]), "name": texts},
)
simple_message = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": texts})
chats = st.lists(simple_message, min_size=1, max_size=4) | st.lists(message, min_size=1, max_size=4)
STYLES = st.sampled_from([{}, {"add_generation_prompt": True}, {"continue_final_message": True}])
USUAL = settings(max_examples=examples(40, 120), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@USUAL
@given(conversation=chats, name=st.sampled_from(sorted(TEMPLATES)), more=STYLES, tools=st.sampled_from([None, [WEATHER]]))
def test_any_conversation_renders_like_the_reference(
    conversation: list[Message], name: str, more: dict[str, Any], tools: Any
) -> None:
    agree(TEMPLATES[name], conversation, tools=tools, documents=DOCUMENTS, **more)


@pytest.mark.sweep
@settings(USUAL, max_examples=5000)
@given(conversation=chats, name=st.sampled_from(sorted(TEMPLATES)), more=STYLES, tools=st.sampled_from([None, [WEATHER]]))
def test_very_many_conversations_render_like_the_reference(
    conversation: list[Message], name: str, more: dict[str, Any], tools: Any
) -> None:
    agree(TEMPLATES[name], conversation, tools=tools, documents=DOCUMENTS, **more)


def test_real_templates_render_like_the_reference(qwen: Tokenizer, smol: Tokenizer) -> None:
    for which in (qwen, smol):
        source = which.template().source
        for conversation in CONVERSATIONS.values():
            for more in ({"add_generation_prompt": True, "tools": [WEATHER]}, {"continue_final_message": True}):
                agree(source, conversation, **more)
            agree(source, conversation, continue_final_message="reasoning_content")


# What a template is shown -------------------------------------------------------------------------------------------


class Role(str, enum.Enum):  # noqa: UP042 - the kind that prints as its name
    USER = "user"


@dataclasses.dataclass
class Said:
    role: str
    content: Any


class Modelled:
    def model_dump(self) -> Message:
        return user("from a model")


def test_templates_see_objects_as_plain_data() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }} {{ m.more }}\n{% endfor %}"
    odd = [
        {"role": Role.USER, "content": "a", "more": np.float32(0.5)},
        Said("user", ("x", np.bool_(False))),
        Modelled(),
        {"role": "user", "content": np.zeros(3), "more": object()},
        {"role": "user", "content": types.MappingProxyType({"a": (1, 2)}), "more": np.array(1)},
    ]
    found = agree(source, odd)
    assert found is not None
    assert "<ndarray> <object>" in found
    assert "from a model" in found
    holder = types.SimpleNamespace(messages=[user("held")])
    assert agree(source, holder) == "user: held \n"


def test_rendering_does_not_change_the_messages() -> None:
    conversation = [user("a"), assistant([{"type": "text", "text": "b"}], reasoning="c")]
    ChatTemplate("{{ messages[-1].content[0].text }}").render(conversation, continue_final_message=True)
    assert conversation == [user("a"), assistant([{"type": "text", "text": "b"}], reasoning="c")]


# The last message left open -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["Hel", "Hel ", " Hel\n\n", "a a a", "🌦", "GLASSFORMER", "<|over|>"])
@pytest.mark.parametrize("name", ["turns", "headers", "brackets", "two_speakers", "parts", "thinking"])
def test_continue_final_message(name: str, words: str) -> None:
    for last in (assistant(words), assistant([{"type": "text", "text": words}]), assistant("x", reasoning_content=words)):
        found = agree(TEMPLATES[name], [user("Hi!"), last], continue_final_message=True)
        agree(TEMPLATES[name], [user("Hi!"), last], continue_final_message="reasoning_content")
        if last["content"] == words and found is not None:
            assert found.rstrip().endswith(words.strip())


def test_continue_final_message_refused() -> None:
    def go_on(last: Message, source: str = "{{ messages[-1].content }}", which: bool | str = True) -> None:
        assert theirs(source, [user("a"), last], continue_final_message=which) is None
        ChatTemplate(source).render([user("a"), last], continue_final_message=which)

    nothing = r"'content'"
    for last in (assistant(None), assistant([]), assistant([{"type": "image"}]), {"role": "assistant"}):
        with pytest.raises(InputError, match=nothing):
            go_on(last)
    with pytest.raises(TemplateError, match="'reasoning_content'"):
        go_on(assistant("a", reasoning_content="b"), which="reasoning_content")
    with pytest.raises(TemplateError, match="'words'"):
        go_on(assistant("words"), "{{ messages[0].content }}")
    with pytest.raises(TemplateError, match="'words'"):
        go_on(assistant("words"), "{{ messages[-1].content | upper }}")


def test_an_unknown_role_gives_the_templates_own_error() -> None:
    with pytest.raises(TemplateError, match="no such role: narrator"):
        ChatTemplate(TEMPLATES["strict_roles"]).render(ODD["an unknown role"])


def test_message_role_must_be_text() -> None:
    for role in (None, 7, ["user"]):
        with pytest.raises(InputTypeError, match="message 0"):
            ChatTemplate("x").render([{"role": role, "content": "a"}])
