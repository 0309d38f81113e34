"""A format of rows: what a row asks for, and the row that answers it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from glassformer.ground.errors import GlassError, InputError
from glassformer.ground.typecheck import brief
from glassformer.runtime.run import Run
from glassformer.text.chat.tool_calls import ToolUse

RowId: TypeAlias = int | str
JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class InputRow:
    """A row of the input."""

    number: int  # from 0
    id: RowId | None  # its own, or else its number; None: it has no right one, which is its error
    value: Any  # what it holds
    error: GlassError | None = None  # why it can have no answer: it cannot be read, or its id is another row's


@dataclass(frozen=True)
class RowRequest:
    """A prompt, and how it goes on."""

    prompt: Any  # a text, messages, or token ids
    keywords: Mapping[str, Any]  # prompt options and settings, as `Model.prepare` takes them
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
    prompt, completion = len(runs[0].prompt_ids), sum(len(run.steps) for run in runs)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
