"""Chat templates: how a list of messages becomes the one text that a model was trained on.

Templates come out of model files, so they run in a sandbox (`sandbox.py`) on copies of plain data, and within a budget.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes as nodes

from glassformer.ground.errors import InputError, InputTypeError, TemplateError, did_you_mean
from glassformer.text.chat.plain_data import REASONING_KEYS, plain_data, with_reasoning_keys
from glassformer.text.chat.sandbox import RaisedByTemplate, RenderContext, Sandbox
from glassformer.text.chat.template_budget import MAX_CHARACTERS, Budget, BudgetExceeded
from glassformer.text.chat.template_errors import explain_failure
from glassformer.text.chat.template_limits import on_own_stack, parse_within_limits

# Variables that people pass out of habit to whichever model they have; a template that has no use for one ignores it.
COMMON_VARIABLES = frozenset({"enable_thinking", "thinking", "reasoning_effort", "date_string", "tools", "documents"})
# Put after the words to go on from, to find them in the rendered text; the space shows whether the template trims.
CONTINUE_MARK = "GLASSFORMER_GOES_ON_HERE "


@dataclass(frozen=True)
class CompiledTemplate:
    """A template ready to run, the variables that it asks for, and the texts that it writes itself."""

    template: jinja2.Template
    variables: frozenset[str]
    literals: str


@lru_cache(maxsize=16)  # a conversation renders the same template at every turn, and compiling is most of the work
def compiled_template(source: str) -> CompiledTemplate:
    try:
        return on_own_stack(partial(_compile, source))
    except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
        raise TemplateError(
            f"the chat template cannot be parsed: {_reason_not_parsed(error)}. Pass another with chat_template=…."
        ) from error


def _reason_not_parsed(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"{_message(error)} in line {error.lineno}"
    if isinstance(error, SyntaxError):  # Python's: a break outside a loop, too many loops in each other
        return error.msg
    if isinstance(error, jinja2.TemplateError):
        return _message(error)
    return "it has a number with too many digits" if isinstance(error, ValueError) else "it is nested too deeply"


def _compile(source: str) -> CompiledTemplate:
    environment = Sandbox()
    tree = parse_within_limits(environment, source)
    variables = jinja2.meta.find_undeclared_variables(tree)
    literals = [node.data for node in tree.find_all(nodes.TemplateData)]
    literals += [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
    template = jinja2.Template.from_code(environment, environment.compile(tree), environment.make_globals(None))
    return CompiledTemplate(template, frozenset(variables) - set(environment.globals), "\0".join(literals))


@dataclass(frozen=True)
class RenderedChat:
    """A conversation as text, and where in it the template's `generation` blocks stand."""

    text: str
    spans: tuple[tuple[int, int], ...] = ()


class ChatTemplate:
    """One template: rendered with messages, special tokens and whatever variables it declares."""

    def __init__(self, source: str) -> None:
        self.source = source

    @property
    def variables(self) -> frozenset[str]:
        """The variables that the template asks for."""
        return compiled_template(self.source).variables

    @property
    def literals(self) -> str:
        """The texts that the template writes itself, one after another."""
        return compiled_template(self.source).literals

    @property
    def marks_generation(self) -> bool:
        """Whether the template says which words are the assistant's."""
        return re.search(r"\{%[-+]?\s*generation\b", self.source) is not None

    def render(self, messages: Any, **options: Any) -> str:
        """The conversation as one text; the options are `rendered`'s."""
        return self.render_with_spans(messages, **options).text

    def render_with_spans(
        self,
        messages: Any,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool | str = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        special_tokens: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        also: Iterable[str] = (),
    ) -> RenderedChat:
        """The conversation as one text, and the assistant's part in it.

        Args:
            messages: a list of messages, or an object that has them as `.messages`.
            continue_final_message: end with the last message's words, for the model to go on from; a name such as
                "reasoning_content" says which of its fields, instead of the content.
            tools: JSON schemas.
            also: what a misspelt variable may have been meant for instead.
        """
        chat = with_reasoning_keys(validated_messages(messages))
        compiled = compiled_template(self.source)
        self._refuse_unknown(variables or {}, compiled.variables, also)
        words = self._mark_last_message(chat, continue_final_message) if continue_final_message else None
        # templates ask whether tools and documents are none, not whether they are defined
        context = {"messages": chat, **plain_data({"tools": tools, "documents": documents})}
        context |= plain_data({**(special_tokens or {}), **(variables or {})})
        try:
            rendered = _run(compiled.template, {**context, "add_generation_prompt": add_generation_prompt})
        except RaisedByTemplate as error:
            raise TemplateError(f"the chat template refused the conversation: {_message(error)}.") from error
        except BudgetExceeded as error:
            raise TemplateError(
                f"the chat template was stopped: {_message(error)}. Pass another with chat_template=…."
            ) from error
        except Exception as error:  # a template is a small program: anything can come out of it
            reason = explain_failure(error, compiled.template, chat)
            raise TemplateError(f"the chat template cannot render the conversation: {reason}.") from error
        return rendered if words is None else RenderedChat(_text_to_continue(rendered.text, words))

    def _refuse_unknown(self, variables: Mapping[str, Any], declared: frozenset[str], also: Iterable[str]) -> None:
        known = sorted(declared - {"messages"})
        for name in variables:
            if name not in known and name not in COMMON_VARIABLES:
                raise TemplateError(
                    f"the chat template has no variable {name!r}.{did_you_mean(name, [*known, *also])} "
                    f"It uses: {', '.join(known) or 'the messages alone'}."
                )

    def _mark_last_message(self, chat: list[dict[str, Any]], which: bool | str) -> str:
        """Put the mark after the last message's words, and return those words."""
        field = which if isinstance(which, str) else "content"
        last = chat[-1] = dict(chat[-1])
        words = last.get(field)
        # thoughts stand in the message under several names
        fields = [name for name in REASONING_KEYS if last.get(name) == words] if field in REASONING_KEYS else [field]
        if not any(name in self.source for name in fields):
            raise TemplateError(
                f"the chat template has no use for {field!r}, so nothing can go on from there. "
                "Pass continue_final_message=True to go on from the content."
            )
        if isinstance(words, (list, tuple)):
            part = next(
                (part for part in reversed(words) if isinstance(part, dict) and isinstance(part.get("text"), str)), None
            )
            if part is not None:
                words, part["text"] = part["text"], part["text"] + CONTINUE_MARK
                return str(words)
        elif isinstance(words, str):
            last.update(dict.fromkeys(fields, words + CONTINUE_MARK))
            return words
        raise InputError(
            f"continue_final_message needs words to go on from, and the last message has none as its {field!r}. "
            "Give it some, or use add_generation_prompt=True."
        )


def _run(template: jinja2.Template, variables: dict[str, Any]) -> RenderedChat:
    """One rendering, within its budget."""
    context = template.new_context(variables)
    assert isinstance(context, RenderContext)
    context.budget, context.written, context.spans = Budget(variables), 0, []
    pieces = []
    for piece in template.root_render_func(context):
        pieces.append(piece)
        context.written += len(piece)
        if context.written > MAX_CHARACTERS:
            raise BudgetExceeded(f"it makes a text of more than {MAX_CHARACTERS:,} characters")
    return RenderedChat("".join(pieces), tuple(context.spans))


def _text_to_continue(text: str, last: str) -> str:
    """The text up to the mark, and without the white space that the template trims."""
    mark = CONTINUE_MARK.rstrip()
    if last.strip() not in text or mark not in text:
        raise TemplateError(
            f"the chat template leaves out or changes the last message, {last.strip()!r}, so nothing can go on from it. "
            "Use add_generation_prompt=True."
        )
    before, _, after = text.rpartition(mark)
    continued = before if after.startswith(CONTINUE_MARK[len(mark) :]) else before.rstrip()
    return continued.replace(CONTINUE_MARK, "").replace(mark, "")  # a template may say the last message more than once


def _message(error: Exception) -> str:
    """An error's words, ready for the middle of a sentence."""
    return str(getattr(error, "message", None) or error).rstrip(".")


def validated_messages(messages: Any) -> list[dict[str, Any]]:
    """A plain copy of the messages, which must be a list of mappings with a role, and at least one."""
    messages = getattr(messages, "messages", messages)
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise InputTypeError(
            f"a conversation is a list of messages, not {type(messages).__name__}: [{{'role': 'user', 'content': '…'}}]."
        )
    if not messages:
        raise InputError("the conversation is empty. Give it a message: [{'role': 'user', 'content': '…'}].")
    chat: list[dict[str, Any]] = [plain_data(message) for message in messages]
    for index, message in enumerate(chat):
        if not isinstance(message, dict) or "role" not in message:
            raise InputTypeError(f"message {index} is {messages[index]!r}; a message is {{'role': 'user', 'content': '…'}}.")
        if not isinstance(message["role"], str):
            raise InputTypeError(
                f"message {index} has the role {message['role']!r}, which is no text. Use 'system', 'user' or 'assistant'."
            )
    return chat
