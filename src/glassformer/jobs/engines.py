"""What answers the rows of a job, wherever it runs: here, with a model that is loaded; or on other machines.

The job keeps the ledger and knows no model. An engine says what it computes with (its fingerprint), and turns rows into the
records that the ledger keeps. Rows are independent of each other, so an engine may answer them in any order and in groups.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from glassformer.decoding import GenerationConfig
from glassformer.ground.errors import GlassError, InputError, SettingError
from glassformer.jobs.formats.openai_batch import OpenAIBatch
from glassformer.jobs.formats.row_format import InputRow, JsonObject, PlainRows, RowFormat
from glassformer.jobs.row_workers import CHUNK, RowAnswer, make_worker
from glassformer.page.format import to_json
from glassformer.runtime.model import Model
from glassformer.see.tensor_files import model_fingerprint, plain_settings
from glassformer.tasks.generation import GenerationTask
from glassformer.tasks.task import Task
from glassformer.text.prompt import PromptOptions

BATCH_SIZE = 32  # texts that are written together
Records: TypeAlias = Generator[tuple[int, JsonObject], None, None]  # a row's index, and what the ledger keeps of it


@dataclass(frozen=True)
class JobPlan:
    """What an engine must know of a job beside its rows."""

    format_name: str
    rows: int  # of the input
    seed: int
    created: int  # when the job began, in seconds since 1970
    batch_size: int | None = None  # texts that are written together; by default as the engine has it


class RowEngine(ABC):
    """What answers rows."""

    @abstractmethod
    def start(self) -> None:
        """Make ready, and refuse settings that no row could be answered with; the others are called after it."""

    @property
    @abstractmethod
    def seed(self) -> int | None:
        """The seed that was set for the whole job, if one was."""

    @abstractmethod
    def fingerprint(self) -> dict[str, Any]:
        """The model, the task and their settings: a job goes on only where none of them has changed."""

    @abstractmethod
    def records(
        self, rows: Iterable[InputRow], finished: Container[int], plan: JobPlan, count_tokens: Callable[[int], None]
    ) -> Records:
        """The records of the rows whose indices are not among the finished, in whatever order."""


class LocalEngine(RowEngine):
    """A model or a task in this process."""

    def __init__(self, model_or_task: Model | Task, keywords: Mapping[str, Any], call: Callable[..., Any]) -> None:
        """`call` is the function that the keywords were passed to, for messages."""
        self.task = model_or_task if isinstance(model_or_task, Task) else None
        self.model = model_or_task.model if isinstance(model_or_task, Task) else model_or_task
        self.keywords = keywords
        self.call = call

    def start(self) -> None:
        if self.task is None:
            _, settings = PromptOptions.split(self.keywords, self.call, GenerationConfig.names())
            self.model.settings.merged(settings)
            _ = self.model.executor  # refuses a model that writes no text
        elif self.keywords:
            option = next(iter(self.keywords))
            raise SettingError(f"a task has its own options. Make it with them: pipeline(…, {option}=…).")

    @property
    def seed(self) -> int | None:
        settings = self.keywords if self.task is None else getattr(self.task.options, "settings", {})
        return settings.get("seed")

    @property
    def chunk(self) -> int:
        """How many consecutive rows belong together: those of a forward task change each other's last digits."""
        return 1 if self.task is None or isinstance(self.task, GenerationTask) else CHUNK

    @property
    def default_batch_size(self) -> int:
        return (self.task.options.batch_size if self.task is not None else None) or BATCH_SIZE

    def fingerprint(self) -> dict[str, Any]:
        fingerprint = model_fingerprint(self.model)
        if self.task is not None:
            options = plain_settings(asdict(self.task.options))
            return {**fingerprint, "task": self.task.name, "settings": options.pop("settings", {}), "options": options}
        return {**fingerprint, "settings": plain_settings(self.keywords)}

    def records(
        self, rows: Iterable[InputRow], finished: Container[int], plan: JobPlan, count_tokens: Callable[[int], None]
    ) -> Records:
        row_format = self._format(plan)
        batch_size = plan.batch_size or self.default_batch_size
        worker = make_worker(self.task or self.model, row_format, self.keywords, plan.seed, batch_size, count_tokens)
        answers = worker.answers(rows, finished)
        try:
            for row, answer in answers:
                yield row.index, _record(row_format, row, answer)
        finally:
            answers.close()

    def _format(self, plan: JobPlan) -> RowFormat:
        if plan.format_name == OpenAIBatch.name:
            return OpenAIBatch(self.model.name, self.model.tokenizer, plan.created)
        return PlainRows()


def _record(row_format: RowFormat, row: InputRow, answer: RowAnswer | GlassError) -> JsonObject:
    """What the ledger keeps of a finished row."""
    if isinstance(answer, RowAnswer):
        try:
            to_json(answer.output, allow_nan=False)
        except ValueError:
            answer = InputError("the answer holds numbers that are not finite, which JSON cannot represent.")
    if isinstance(answer, GlassError):
        return {"failed": True, "prompt_tokens": 0, "completion_tokens": 0, "output": row_format.error_answer(row, answer)}
    tokens = {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.completion_tokens}
    return {"failed": False, **tokens, "output": answer.output}
