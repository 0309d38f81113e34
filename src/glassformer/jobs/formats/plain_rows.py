"""Our own rows.

    {"id": "a", "prompt": "Name a colour.", "max_new_tokens": 8}
    {"id": "a", "text": "Blue.", "ids": [15128, 30], "finish": "eos", "usage": {…}, "error": null}

A row has a prompt, messages or token ids; raw, system and template, and every setting, by their own names; the template's
variables also as a request has them, chat_template_kwargs and reasoning_effort; metadata, which is copied to the answer. A
text alone is a prompt. For a task, the row is the task's input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.ground.errors import GlassError, InputError, InputTypeError
from glassformer.ground.typecheck import brief
from glassformer.jobs.formats.row_format import InputRow, JsonObject, RowFormat, RowId, RowRequest, check_id, usage
from glassformer.runtime.request_settings import template_variables
from glassformer.runtime.run import Run, logprob_data

PROMPTS = ("prompt", "messages", "ids")
TEMPLATE_FIELDS = ("chat_template_kwargs", "reasoning_effort")
OWN_FIELDS = (*PROMPTS, "id", "metadata")  # all others are prompt options and settings


class PlainRows(RowFormat):
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
        if not isinstance(value[kind], str if kind == "prompt" else list):
            raise InputTypeError(f"{kind} must be {'a text' if kind == 'prompt' else 'a list'}, not {brief(value[kind])}.")
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
