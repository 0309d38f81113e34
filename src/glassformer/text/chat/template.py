"""Chat templates: how a list of messages becomes the one text that a model was trained on.

Templates come out of model files, so they run in a sandbox (`sandbox.py`) within a budget. A template must not reach into
the caller's objects, whose methods may do anything: all that it sees is rebuilt of dicts, lists, texts and numbers.

Jinja's compiler and Python's are recursive, and in places quadratic: a hostile template would overflow a thread's stack, or
take minutes, before its first line runs. So its tokens are counted before it is parsed, and its tree is measured, without
recursion, before it is compiled, on a stack of its own. Published templates are far below the limits: 17 kB, 2,500 tokens,
30 levels, chains of 7.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, TypeVar

import jinja2
import jinja2.meta
import jinja2.nodes as nodes

from glassformer.ground.errors import InputError, InputTypeError, TemplateError, did_you_mean
from glassformer.ground.ownership import stack_size
from glassformer.text.chat.sandbox import RaisedByTemplate, RenderContext, Sandbox
from glassformer.text.chat.template_budget import MAX_CHARACTERS, Budget, BudgetExceeded
from glassformer.text.chat.template_errors import explain_failure

# The names that a message's thoughts go by; templates read the first, and a few read the second.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")


MAX_LEVELS = 150  # of lists within lists


def plain_data(value: Any, levels: int = MAX_LEVELS) -> Any:
    """A value in dicts, lists, tuples, texts, numbers, booleans and None."""
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    if not levels:
        raise InputError(
            f"the conversation is nested more than {MAX_LEVELS} levels deep. Pass shallower messages and tools."
        )
    for base in (str, int, float):  # a subclass may carry methods of its own: an enum, a NumPy number
        if isinstance(value, base):
            return base.__str__(value) if base is str else getattr(base, f"__{base.__name__}__")(value)
    if isinstance(value, Mapping):
        return {plain_data(key, levels - 1): plain_data(item, levels - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [plain_data(item, levels - 1) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray":
        return plain_data(value.item())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_data(getattr(value, field.name), levels - 1) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain_data(dump(), levels - 1)
    return f"<{kind.__name__}>"


def with_reasoning_keys(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each with its thoughts under every name that templates read."""
    copies = []
    for message in messages:
        reasoning = next((message[name] for name in REASONING_KEYS if message.get(name) is not None), None)
        copies.append(message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning})
    return copies


MAX_SOURCE = 200_000  # characters
MAX_TOKENS = 30_000  # white space between words included
MAX_TREE_LEVELS = 100  # of nodes within nodes; a chain of filters or additions is as deep as it is long
MAX_ELIFS = 100  # in one chain: Python nests them
MAX_NAME_COPIES = 400_000  # the compiler copies all names for each branch and loop
STACK_BYTES = 2**22  # many times what compiling the deepest tree needs

Result = TypeVar("Result")


class TemplateRefused(jinja2.TemplateError):
    """The template is too long or nested too deeply to be compiled, or asks for other files."""


def parse_within_limits(environment: jinja2.Environment, source: str) -> nodes.Template:
    """The template's tree, which can be compiled in little time and on a small stack."""
    if len(source) > MAX_SOURCE:
        raise TemplateRefused(f"it is longer than {MAX_SOURCE:,} characters")
    if next(islice(environment.lexer.tokeniter(source, None), MAX_TOKENS, None), None) is not None:
        raise TemplateRefused(f"it has more than {MAX_TOKENS:,} tokens")
    try:
        tree = environment.parse(source)
    except RecursionError:
        raise TemplateRefused(f"it is nested more than {MAX_TREE_LEVELS} levels deep") from None
    _check_tree(tree)
    return tree


def _check_tree(tree: nodes.Template) -> None:
    names, branches = set(), 0
    pending: list[tuple[nodes.Node, int]] = [(tree, 1)]
    while pending:
        node, level = pending.pop()
        if level > MAX_TREE_LEVELS:
            raise TemplateRefused(f"it is nested more than {MAX_TREE_LEVELS} levels deep")
        if isinstance(node, nodes.Name):
            names.add(node.name)
        elif isinstance(node, nodes.If):
            branches += 2 + len(node.elif_)
            if len(node.elif_) > MAX_ELIFS:
                raise TemplateRefused(f"it has a chain of more than {MAX_ELIFS} elif")
        elif isinstance(node, (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            raise TemplateRefused("it includes another file, and there are none for it to read")
        elif isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.With, nodes.FilterBlock, nodes.AssignBlock)):
            branches += 1
        pending.extend((child, level + 1) for child in node.iter_child_nodes())
    if len(names) * branches > MAX_NAME_COPIES:
        raise TemplateRefused(f"its {len(names):,} names and {branches:,} branches are too many together")


def on_own_stack(function: Callable[[], Result]) -> Result:
    """What a function returns when it runs on a large stack, however little of the caller's is left."""
    with ThreadPoolExecutor(1, "chat template") as pool:
        with stack_size(STACK_BYTES):
            future = pool.submit(function)
        return future.result()


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
