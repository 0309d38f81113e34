"""Rows in, answers out: by a model that writes, by a task that generates, by a task of one forward pass.

An answer depends on its row and the job alone. Draws are keyed by the job's seed and the row's id, not by order or batch.
Forward tasks may pad their rows, and what stands in a batch then changes last digits: they run in chunks of rows with fixed
indices, and a chunk that was not finished is run again as a whole.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from glassformer.decoding import Policy
from glassformer.decoding.settings_table import OWN_HEAD
from glassformer.ground.errors import GlassError, InputError, spelled_by
from glassformer.jobs.continuous_batch import ContinuousBatch, Texts
from glassformer.jobs.formats.row_format import InputRow, JsonObject, RowFormat, RowId, RowRequest
from glassformer.runtime.model import Model, load_assistant
from glassformer.runtime.run import Run, TextStream, runs_of_texts
from glassformer.tasks.generation import GenerationTask
from glassformer.tasks.task import Task, json_value
from glassformer.text.prompt import PromptOptions

CHUNK = 128  # rows of a forward task that are answered together
TEXT_FIELDS = ("text", "text_pair", "question", "context")  # of a task's input
MAX_TEXTS = 128  # that one row can ask for
JOB_ONLY = ("assistant_model", "generation_config")  # settings that no row can have


@dataclass(frozen=True)
class RowAnswer:
    """A row of the output, and what it took."""

    output: JsonObject
    prompt_tokens: int
    completion_tokens: int = 0


Prepared: TypeAlias = tuple[RowRequest, Run]
RowAnswers: TypeAlias = Generator[tuple[InputRow, RowAnswer | GlassError], None, None]


class RowWorker(ABC):
    """What answers rows."""

    @abstractmethod
    def answers(self, rows: Iterable[InputRow], finished: Container[int]) -> RowAnswers:
        """The answers to the rows whose indices are not among the finished, in whatever order."""


class TextWorker(RowWorker):
    """What rows ask of a model that writes, in a continuous batch."""

    def __init__(
        self,
        model: Model,
        row_format: RowFormat,
        keywords: Mapping[str, Any],
        seed: int,
        batch_size: int,
        count_tokens: Callable[[int], None],
    ) -> None:
        self.model = model
        self.format = row_format
        self.keywords = {name: value for name, value in keywords.items() if name != "seed"}
        self.seed = seed
        self.batch = ContinuousBatch[tuple[InputRow, Prepared | None]](model, batch_size, count_tokens)
        if isinstance(assistant := self.keywords.get("assistant_model"), str) and assistant != OWN_HEAD:
            self.keywords["assistant_model"] = load_assistant(assistant)

    def answers(self, rows: Iterable[InputRow], finished: Container[int]) -> RowAnswers:
        for (row, prepared), texts in self.batch.run(self._start(row) for row in rows if row.index not in finished):
            if isinstance(texts, GlassError):
                yield row, texts
            else:
                assert prepared is not None
                yield row, self._answer(row, *prepared, texts)

    def _start(self, row: InputRow) -> tuple[tuple[InputRow, Prepared | None], Sequence[Policy] | GlassError]:
        try:
            request = self.format.text_request(_value(row))
            run = self._run(row, request)
            policies = run.policies()
        except GlassError as error:
            return (row, None), error
        return (row, (request, run)), policies

    def _run(self, row: InputRow, request: RowRequest) -> Run:
        if forbidden := [name for name in JOB_ONLY if name in request.keywords]:
            raise InputError(f"{forbidden[0]} is for all rows or none. Set it for the whole job.")
        for name in ("num_return_sequences", "num_beams"):
            if isinstance(count := request.keywords.get(name), int) and count > MAX_TEXTS:
                raise InputError(f"{name} is {count}; a row can have {MAX_TEXTS} texts at most. Use several rows.")
        keywords = {**self.keywords, **request.keywords}
        if isinstance(template := self.keywords.get("template"), Mapping) and isinstance(keywords["template"], Mapping):
            keywords["template"] = {**template, **keywords["template"]}
        if request.is_ids:  # the job's prompt options are about texts
            texts_only = PromptOptions.__annotations__.keys() - request.keywords.keys()
            keywords = {"raw": True, **{name: value for name, value in keywords.items() if name not in texts_only}}
        if keywords.get("seed") is None:
            keywords["seed"] = row_seed(self.seed, row.id)
        with spelled_by(json_spelling):
            return self.model.start(request.prompt, **keywords)

    def _answer(self, row: InputRow, request: RowRequest, run: Run, texts: Texts) -> RowAnswer:
        runs = runs_of_texts(run, len(texts))
        visible = () if request.tool_use is None else request.tool_use.visible_tokens
        for each, steps in zip(runs, texts, strict=True):
            stream = TextStream(each, self.model.tokenizer, visible)
            for step in steps:
                stream.add(step, 0.0)
        generated = sum(len(each.steps) for each in runs)
        return RowAnswer(self.format.text_answer(row, request, runs), len(run.prompt_ids), generated)


class GenerationTaskWorker(RowWorker):
    """Inputs of a task that generates, in a continuous batch."""

    def __init__(
        self, task: GenerationTask, row_format: RowFormat, seed: int, batch_size: int, count_tokens: Callable[[int], None]
    ) -> None:
        self.task = task
        self.format = row_format
        self.seed = seed
        self.settings = task.model.settings.merged(task.options.settings)
        self.recipe = task.model.recipe(self.settings)
        self.batch = ContinuousBatch[tuple[InputRow, Any]](task.model, batch_size, count_tokens)

    def answers(self, rows: Iterable[InputRow], finished: Container[int]) -> RowAnswers:
        for (row, item), texts in self.batch.run(self._start(row) for row in rows if row.index not in finished):
            yield row, texts if isinstance(texts, GlassError) else self._answer(row, item, texts)

    def _start(self, row: InputRow) -> tuple[tuple[InputRow, Any], Sequence[Policy] | GlassError]:
        task = self.task
        try:
            (value,) = self.format.task_inputs(_value(row), task.name)
            item = task.parse_input(value, task.options)
            ids = task.fitting_prompt_ids(item, self.settings, task.options)
            return (row, item), task.model.policies(self.recipe, ids, seed=row_seed(self.seed, row.id))
        except GlassError as error:
            return (row, None), error

    def _answer(self, row: InputRow, item: Any, texts: Texts) -> RowAnswer:
        policies = [outcome.policy for steps in texts if (outcome := steps[-1].outcome) is not None]
        answer = self.task.collect_texts(item, policies, self.task.options)
        prompt = policies[0].prompt if policies[0].source is None else policies[0].source
        output = self.format.task_answer(row, [answer], len(prompt))
        return RowAnswer(output, len(prompt), sum(len(steps) for steps in texts))


class ForwardTaskWorker(RowWorker):
    """Inputs of a task of one forward pass, in chunks."""

    def __init__(self, task: Task, row_format: RowFormat, count_tokens: Callable[[int], None]) -> None:
        self.task = task
        self.format = row_format
        self.count_tokens = count_tokens

    def answers(self, rows: Iterable[InputRow], finished: Container[int]) -> RowAnswers:
        remaining = iter(rows)
        while chunk := list(islice(remaining, CHUNK)):
            if any(row.index not in finished for row in chunk):
                yield from ((row, answer) for row, answer in self._chunk(chunk) if row.index not in finished)

    def _chunk(self, rows: Sequence[InputRow]) -> RowAnswers:
        """The answers to the rows of a chunk, in their order."""
        requests = [self._inputs(row) for row in rows]
        answers = self.task.stream([value for inputs in requests if isinstance(inputs, list) for value in inputs])
        for row, inputs in zip(rows, requests, strict=True):
            if isinstance(inputs, GlassError):
                yield row, inputs
                continue
            row_answers = [next(answers) for _ in inputs]
            if (error := next((answer for answer in row_answers if isinstance(answer, GlassError)), None)) is not None:
                yield row, error
                continue
            tokens = sum(self._token_count(value) for value in inputs)
            self.count_tokens(tokens)
            yield row, RowAnswer(self.format.task_answer(row, [*map(json_value, row_answers)], tokens), tokens)

    def _inputs(self, row: InputRow) -> list[Any] | GlassError:
        try:
            return self.format.task_inputs(_value(row), self.task.name)
        except GlassError as error:
            return error

    def _token_count(self, value: Any) -> int:
        """How many tokens an input's texts have."""
        texts = [value.get(name) for name in TEXT_FIELDS] if isinstance(value, Mapping) else value
        texts = [text for text in ([texts] if isinstance(texts, str) else texts) if isinstance(text, str)]
        return sum(len(ids) for ids in self.task.tokenizer(texts)["input_ids"])


def make_worker(
    model_or_task: Model | Task,
    row_format: RowFormat,
    keywords: Mapping[str, Any],
    seed: int,
    batch_size: int,
    count_tokens: Callable[[int], None],
) -> RowWorker:
    """What answers the rows of a job."""
    if isinstance(model_or_task, GenerationTask):
        return GenerationTaskWorker(model_or_task, row_format, seed, batch_size, count_tokens)
    if isinstance(model_or_task, Task):
        return ForwardTaskWorker(model_or_task, row_format, count_tokens)
    return TextWorker(model_or_task, row_format, keywords, seed, batch_size, count_tokens)


def row_seed(seed: int, row_id: RowId | None) -> int:
    """A row's own seed."""
    return int.from_bytes(hashlib.sha256(json.dumps([seed, row_id]).encode()).digest()[:6])


def json_spelling(name: str, *value: Any) -> str:
    """An argument as it stands in a row.

    >>> json_spelling("do_sample", True), json_spelling("seed")
    ('"do_sample": true', 'seed')
    """
    return f'"{name}": {json.dumps(value[0], ensure_ascii=False, default=str)}' if value else name


def _value(row: InputRow) -> Any:
    """What a row holds; its error is raised, if it has one."""
    if row.error is not None:
        raise row.error
    return row.value
