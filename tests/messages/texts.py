"""Tokenizers, chat templates and tools."""

from __future__ import annotations

import copy
from typing import Any

from glassformer import AutoTokenizer
from glassformer.ground.errors import CheckpointError, InputError, InputTypeError, TemplateError, UnknownArgument
from glassformer.text import ChatTemplate, Tokenizer
from glassformer.text.chat.tool_calls import ToolCallFormat, template_messages
from tests.messages.calls import USER, Entry, chat_tokenizer, decoder, path, place, tokenizer, write
from tests.see.models import TEXT, encoder
from tests.text.tool_templates import GEMMA, HERMES

RAGGED = [{"input_ids": [5, 6], "labels": [1]}, {"input_ids": [7], "labels": [2, 3]}]


LAST = "{{ messages[-1].content }}"


def padding() -> Any:
    """A tokenizer with a padding token."""
    return encoder().model.tokenizer


def several() -> Any:
    """A tokenizer with templates that have names."""
    tokenizer = copy.copy(chat_tokenizer())
    tokenizer.chat_template = {"default": "a", "rag": "b", "tool_use": "c"}
    return tokenizer


def masked(**options: Any) -> Any:
    """Which tokens are the assistant's."""
    template = "{% generation %}a{% endgeneration %}"
    options |= {"return_assistant_tokens_mask": True, "tokenize": True, "return_dict": True}
    return chat_tokenizer().apply_chat_template([USER], chat_template=template, **options)


def go_on(source: str, last: Any, which: bool | str = True) -> Any:
    return ChatTemplate(source).render([USER, {"role": "assistant", **last}], continue_final_message=which)


def nested(levels: int) -> Any:
    return [nested(levels - 1)] if levels else "x"


TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def tool_format(template: str) -> Any:
    found = ToolCallFormat.of_template(template)
    assert found is not None
    return found


MESSAGES: dict[str, list[Entry]] = {
    "tokenizers": [
        (InputError, lambda: tokenizer().convert_ids_to_tokens(10**6),
         "id 1000000 stands for no token; the vocabulary has 256."),
        (InputError, lambda: tokenizer().decode(-1),
         "-1 is no token id; the vocabulary has 256."),
        (InputError, lambda: tokenizer()(["a", "b c d"], return_tensors="np"),
         "texts of 1 to 5 tokens do not form one tensor. Pass padding=True."),
        (InputError, lambda: tokenizer()("the", padding="max_length"),
         "this tokenizer has no padding token. Set one: tokenizer.pad_token = tokenizer.eos_token."),
        (InputError, lambda: tokenizer()("the cat sat", "a", truncation="only_second", max_length=3),
         "truncation='only_second' cannot bring 12 tokens to 3 by cutting 1. Use truncation=True, which may cut both "
         "texts."),
        (InputError, lambda: AutoTokenizer.from_pretrained(path("gpt2"), pad_token="<nothing>"),
         "'<nothing>' is not in the vocabulary."),
        (AttributeError, lambda: tokenizer().eos_tokens,
         "the tokenizer has no attribute 'eos_tokens'"),
        (AttributeError, lambda: tokenizer()("a").token_type_ids,
         "the encoding has no 'token_type_ids'; it has input_ids, attention_mask"),
        (InputTypeError, lambda: tokenizer()(3),
         "the tokenizer takes a string or a list of strings, not int."),
        (UnknownArgument, lambda: AutoTokenizer.from_pretrained(path("gpt2"), revision="main"),
         "from_pretrained() has no argument 'revision'. It takes: …."),
        (CheckpointError, lambda: Tokenizer.from_folder(write("toneless/a", "").parent),
         "…/toneless: holds no tokenizer.json. Fetch the tokenizer's files into it."),
        (CheckpointError, lambda: AutoTokenizer.from_pretrained(write("broken/tokenizer.json", "{").parent),
         "…/broken/tokenizer.json: not a tokenizer file (…). Fetch it again."),
        (UnknownArgument, lambda: AutoTokenizer.from_pretrained(path("gpt2"), pad_tokn="!"),
         "from_pretrained() has no argument 'pad_tokn'. Did you mean 'pad_token'? It takes: …."),
        (InputTypeError, lambda: tokenizer().decode("x"),
         "token ids are whole numbers, or lists or tensors of them, not str."),
        (CheckpointError, lambda: Tokenizer.from_tiktoken(place() / "none.tiktoken"),
         "…/none.tiktoken: the file is missing. Fetch or copy the checkpoint again."),
        (InputError, lambda: tokenizer()("a b").tokens(3),
         "there is no row 3; there are 1."),
        (InputError, lambda: tokenizer()("a b").token_to_chars(50),
         "there is no token 50 in a row of 3 tokens."),
        (InputError, lambda: tokenizer()("a b").word_to_tokens(-1),
         "there is no word -1 in a row of 3 tokens."),
        (InputError, lambda: padding().pad(padding()("a b")).word_ids(),
         "this encoding was made from ids and knows no text. Ask the one that the tokenizer gave."),
        (InputError, lambda: padding().pad(RAGGED, return_tensors="pt"),
         "labels of 1 to 2 tokens do not form one tensor. Fill them up first."),
        (InputError, lambda: padding()("the", padding="max_length"),
         "padding='max_length' needs max_length=…."),
        (InputError, lambda: tokenizer()("\ud83d"),
         "the text holds a lone surrogate, which is no character. Repair its encoding first."),
    ],
    "chat templates": [
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template(3),
         "a conversation is a list of messages, not int: [{'role': 'user', 'content': '…'}]."),
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template([USER, {"role": 3}]),
         "message 1 has the role 3, which is no text. Use 'system', 'user' or 'assistant'."),
        (TemplateError, lambda: tokenizer().apply_chat_template([USER]),
         "this tokenizer has no chat template. Pass chat_template=…, or use plain text."),
        (InputTypeError, lambda: chat_tokenizer().get_chat_template(7),
         "chat_template is a template's text or name, not int."),
        (TemplateError,
         lambda: chat_tokenizer().apply_chat_template(
             [USER], return_assistant_tokens_mask=True, tokenize=True, return_dict=True),
         "the chat template does not say which words are the assistant's. Pass one that puts them between {% generation "
         "%} and {% endgeneration %}."),
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template([USER], tokenizer_kwargs={"padding": True}),
         "tokenizer_kwargs has 'padding', which apply_chat_template sets. Pass it by itself."),
        (InputError, lambda: chat_tokenizer().encode_message_with_chat_template(USER, add_generation_prompt=True),
         "one message has no generation prompt. Leave add_generation_prompt out, and add it at the end."),
        (InputError,
         lambda: chat_tokenizer().apply_chat_template([USER], continue_final_message=True, add_generation_prompt=True),
         "continue_final_message does not go together with add_generation_prompt=True. Leave one of them out."),
        (TemplateError, lambda: chat_tokenizer().apply_chat_template([USER], return_tensor="pt"),
         "the chat template has no variable 'return_tensor'. Did you mean 'return_tensors'? It uses: "
         "add_generation_prompt."),
        (TemplateError, lambda: chat_tokenizer().apply_chat_template([USER], zzz=1),
         "the chat template has no variable 'zzz'. It uses: add_generation_prompt."),
        (TemplateError, lambda: ChatTemplate("{{ messages }}").render([USER], variables={"messages": []}),
         "the chat template has no variable 'messages'. It uses: the messages alone."),
        (TemplateError, lambda: ChatTemplate("{{ raise_exception('Users first.') }}").render([USER]),
         "the chat template refused the conversation: Users first."),
        (TemplateError, lambda: ChatTemplate("{{ 1 // 0 }}").render([USER]),
         "the chat template cannot render the conversation: integer division or modulo by zero in its line 1. Pass "
         "another with chat_template=…."),
        (TemplateError, lambda: ChatTemplate("{% if %}").render([USER]),
         "the chat template cannot be parsed: … in line 1. Pass another with chat_template=…."),
        (TemplateError, lambda: ChatTemplate("{{ " + "9" * 10000 + " }}").render([USER]),
         "the chat template cannot be parsed: it has a number with too many digits. Pass another with chat_template=…."),
        (TemplateError, lambda: several().template("poem"),
         "there is no chat template 'poem'. Pass chat_template= one of: default, rag, tool_use."),
        (TemplateError, lambda: ChatTemplate("{{ mood }}").render([USER], variables={"line": 1}),
         "the chat template has no variable 'line'. It uses: mood."),
        (InputError, lambda: ChatTemplate("{{ messages }}").render([{"role": "user", "content": nested(300)}]),
         "the conversation is nested more than 150 levels deep. Pass shallower messages and tools."),
        (InputError, lambda: go_on(LAST, {"content": None}),
         "continue_final_message needs words to go on from, and the last message has none as its 'content'. Give it "
         "some, or use add_generation_prompt=True."),
        (TemplateError, lambda: go_on(LAST, {"content": "a", "reasoning_content": "b"}, "reasoning_content"),
         "the chat template has no use for 'reasoning_content', so nothing can go on from there. Pass "
         "continue_final_message=True to go on from the content."),
        (TemplateError, lambda: go_on("{{ messages[0].content }}", {"content": "words"}),
         "the chat template leaves out or changes the last message, 'words', so nothing can go on from it. Use "
         "add_generation_prompt=True."),
        (InputError, lambda: masked(tokenizer_kwargs={"return_overflowing_tokens": True}),
         "return_assistant_tokens_mask does not go together with return_overflowing_tokens=True. Leave one of them "
         "out."),
        (UnknownArgument, lambda: decoder().read(TEXT, enable_thinking=True),
         "read() has no argument 'enable_thinking'. It takes: …; variables of the chat template go into template={…}."),
    ],
    "tools": [
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template([USER], tools=3),
         "tools is a list of functions or JSON schemas, not int: tools=[…]."),
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template([USER], tools=[3]),
         "tool 0 is 3; a tool is a function with type hints and a docstring, or a JSON schema: {'type': 'function', "
         "'function': {'name': …, 'description': …, 'parameters': …}}."),
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template([USER], documents=3),
         "documents is a list of documents, not int: [{'title': '…', 'text': '…'}]."),
        (InputTypeError, lambda: chat_tokenizer().apply_chat_template([USER], documents=[{}, "text"]),
         "document 1 is 'text'; a document is {'title': '…', 'text': '…'}."),
        (InputError, lambda: template_messages([{"role": "user", "content": [{"type": "image_url"}]}]),
         "message 0 has a part of type 'image_url', which this model cannot read. Send text alone."),
        (InputError,
         lambda: template_messages(
             [{"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": "3"}}]}]),
         "the arguments of the call to 'weather' are no object. Send an object."),
        (InputError, lambda: tool_format(HERMES).settings(chat_tokenizer(), TOOLS, "wether"),
         "tool_choice names 'wether', which is none of the tools. Did you mean 'weather'?"),
        (InputError, lambda: tool_format(GEMMA).settings(chat_tokenizer(), TOOLS, "required"),
         "this model's calls are no JSON, so none can be forced. Use tool_choice 'auto'."),
    ],
}  # fmt: skip
