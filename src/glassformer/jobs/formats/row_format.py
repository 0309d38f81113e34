"""A format of rows: what a row asks for, and the row that answers it. Our own format is here too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from glassformer.ground.errors import GlassError, InputError, InputTypeError
from glassformer.ground.typecheck import brief, matches_type, type_words
from glassformer.runtime.request_settings import template_variables
from glassformer.runtime.run import Run, logprob_data
from glassformer.text.chat.tool_calls import ToolUse

RowId: TypeAlias = int | str
JsonObject: TypeAlias = dict[str, Any]
PROMPTS: dict[str, Any] = {"prompt": str, "messages": list[Any], "ids": list[int]}
TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort")
OWN_FIELDS = (*PROMPTS, "id", "metadata")  # all others are prompt options and settings


@dataclass(frozen=True)
class InputRow:
    """A row of the input."""

    index: int  # from 0
    id: RowId | None  # its own, or else its index; None: it has no right one, which is its error
    value: Any  # what it holds
    error: GlassError | None = None  # why it can have no answer: it cannot be read, or its id is another row's


@dataclass(frozen=True)
class RowRequest:
    """A prompt, and how it goes on."""

    prompt: Any  # a text, messages, or token ids
    keywords: Mapping[str, Any]  # prompt options and settings, as `Model.start` takes them
    is_ids: bool = False
    tool_use: ToolUse | None = None  # where the model may call tools


class RowFormat(ABC):
    """How rows are read and written. A method that reads one raises a `GlassError` where that is not possible."""

    name: str

    @staticmethod
    @abstractmethod
    def id_of(value: Any) -> RowId | None:
        """The row's own id, if it has one."""

    @abstractmethod
    def text_request(self, value: Any) -> RowRequest:
        """What a row asks of a model that writes."""

    @abstractmethod
    def task_inputs(self, value: Any, task: str) -> list[Any]:
        """What a row asks of a task: one input, or several."""

    @abstractmethod
    def text_answer(self, row: InputRow, request: RowRequest, runs: Sequence[Run]) -> JsonObject:
        """The row for generated texts: one, or as many as the request asked for."""

    @abstractmethod
    def task_answer(self, row: InputRow, answers: Sequence[Any], prompt_tokens: int) -> JsonObject:
        """The row for a task's answers, one for each input, as JSON can represent them."""

    @abstractmethod
    def error_answer(self, row: InputRow, error: GlassError) -> JsonObject:
        """The row for a request without an answer."""


def check_id(value: Any, name: str) -> RowId | None:
    """A row's own id: a text, or a whole number."""
    if value is None or (isinstance(value, (str, int)) and not isinstance(value, bool)):
        return value
    raise InputError(f"{name} is {brief(value)}; it must be a text or a whole number.")


def usage(runs: Sequence[Run]) -> JsonObject:
    """How many tokens were read and generated."""
    return token_usage(len(runs[0].prompt_ids), sum(len(run.steps) for run in runs))


def token_usage(prompt: int, completion: int) -> JsonObject:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


class PlainRows(RowFormat):
    """Our own rows.

        {"id": "a", "prompt": "Name a colour.", "max_new_tokens": 8}
        {"id": "a", "text": "Blue.", "ids": [15128, 30], "finish": "eos", "usage": {…}, "error": null}

    A row has a prompt, messages or token ids; raw, system and template, and every setting, by their own names; the
    template's variables also as a request has them, chat_template_kwargs and reasoning_effort; metadata, which is copied to
    the answer. A text alone is a prompt. For a task, the row is the task's input.
    """

    name = "rows"

    @staticmethod
    def id_of(value: Any) -> RowId | None:
        return check_id(value.get("id"), "id") if isinstance(value, Mapping) else None

    def text_request(self, value: Any) -> RowRequest:
        if isinstance(value, str):
            value = {"prompt": value}
        if not isinstance(value, Mapping):
            raise InputTypeError(f"a row is an object with a prompt, messages or ids, not {type(value).__name__}.")
        prompts = [name for name in PROMPTS if name in value]
        if len(prompts) != 1:
            has = f"this one has {' and '.join(prompts)}" if prompts else "this one has none of them"
            raise InputError(f"a row has a prompt, messages or ids; {has}.")
        (kind,) = prompts
        if not matches_type(value[kind], PROMPTS[kind]):
            raise InputTypeError(f"{kind} must be {type_words(PROMPTS[kind])}, not {brief(value[kind])}.")
        keywords = {name: item for name, item in value.items() if name not in OWN_FIELDS}
        variables = template_variables(*(keywords.pop(name, None) for name in TEMPLATE_FIELDS))
        template = keywords.get("template")
        if variables and isinstance(template, Mapping | None):
            keywords["template"] = variables | dict(template or {})
        return RowRequest(value[kind], keywords, is_ids=kind == "ids")

    def task_inputs(self, value: Any, task: str) -> list[Any]:
        return [value]

    def text_answer(self, row: InputRow, request: RowRequest, runs: Sequence[Run]) -> JsonObject:
        answer: JsonObject = {"id": row.id, **_text_data(runs[0]), "usage": usage(runs), "error": None}
        if len(runs) > 1:
            answer["choices"] = [_text_data(run) for run in runs]
        if runs[0].settings.prompt_logprobs is not None:
            answer["prompt_logprobs"] = [logprob_data(step) for step in runs[0].prompt_steps]
        return answer | _metadata(row)

    def task_answer(self, row: InputRow, answers: Sequence[Any], prompt_tokens: int) -> JsonObject:
        return {"id": row.id, "output": answers[0], "error": None} | _metadata(row)

    def error_answer(self, row: InputRow, error: GlassError) -> JsonObject:
        return {"id": row.id, "error": str(error)} | _metadata(row)


def _text_data(run: Run) -> JsonObject:
    data: JsonObject = {"text": run.text, "ids": list(run.ids), "finish": run.finish.value if run.finish else None}
    if run.stop is not None:
        data["stop"] = run.stop
    if run.settings.logprobs is not None:
        data["logprobs"] = [logprob_data(step) for step in run.steps]
    return data


def _metadata(row: InputRow) -> JsonObject:
    return {"metadata": row.value["metadata"]} if isinstance(row.value, Mapping) and "metadata" in row.value else {}
