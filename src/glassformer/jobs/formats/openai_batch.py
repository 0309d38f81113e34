"""OpenAI's batch files: requests to its API as lines, and its responses as lines.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […], "max_tokens": 8}}
    {"id": "batch_req_…", "custom_id": "a", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}

Format: https://platform.openai.com/docs/guides/batch. Fields of a body that would change the answer and cannot be honoured
are refused, those that change nothing are ignored. The model is the job's, whatever the body calls it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from glassformer.ground.errors import GlassError, InputError, InputTypeError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.jobs.formats import openai
from glassformer.jobs.formats.row_format import InputRow, JsonObject, RowFormat, RowId, RowRequest, check_id, usage
from glassformer.runtime.request_settings import (
    Refusal,
    ToSettings,
    chosen_tool,
    field_settings,
    refuse_fields,
    sampling_settings,
    template_variables,
)
from glassformer.runtime.run import Run
from glassformer.text import Tokenizer
from glassformer.text.chat.tool_calls import ParsedMessage, chat_prompt

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
IN_A_BATCH = Refusal("is not supported in a batch. Leave it out.")
BATCH_REFUSED = {"stream": IN_A_BATCH, "echo": IN_A_BATCH, "best_of": IN_A_BATCH._replace(harmless=(None, 1))}
CHAT_FIELDS = (  # beside its settings
    "messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs",
)  # fmt: skip


class OpenAIBatch(RowFormat):
    name = "openai-batch"

    def __init__(self, model: str, tokenizer: Tokenizer, created: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.created = created  # when the job began, in seconds since 1970

    @staticmethod
    def recognizes(value: Any) -> bool:
        """Whether a row looks like a request of a batch file."""
        return isinstance(value, Mapping) and "body" in value and ("custom_id" in value or "url" in value)

    @staticmethod
    def id_of(value: Any) -> RowId | None:
        return check_id(value.get("custom_id"), "custom_id") if isinstance(value, Mapping) else None

    # Requests ---------------------------------------------------------------------------------------------------

    def text_request(self, value: Any) -> RowRequest:
        url, body = self._request(value)
        if url == EMBEDDINGS:
            raise InputError(f"{url} is no request for text. Use the task embed: glass task embed --file … --out ….")
        return self._chat_request(body) if url == CHAT else self._completion_request(body)

    def _chat_request(self, body: Mapping[str, Any]) -> RowRequest:
        body = body if body.get("logprobs") else {**body, "top_logprobs": None}
        settings = _settings(body, openai.CHAT_SETTINGS, openai.CHAT_REFUSED, CHAT_FIELDS)
        messages, tools, parallel = (body.get(name) for name in ("messages", "tools", "parallel_tool_calls"))
        if not isinstance(messages, list):
            raise InputTypeError("messages must be a list of messages.")
        if not isinstance(tools, list | None):
            raise InputTypeError(f"tools is {brief(tools)}; it must be a list of tools.")
        if not isinstance(parallel, bool | None):
            raise InputTypeError(f"parallel_tool_calls is {brief(parallel)}; it must be true or false.")
        prompt = chat_prompt(
            self.tokenizer, messages, tools=tools or (), tool_choice=chosen_tool(body.get("tool_choice"), tools),
            parallel_tool_calls=parallel is not False,
            template=template_variables(body.get("chat_template_kwargs"), body.get("reasoning_effort")),
        )  # fmt: skip
        keywords = {**settings, **prompt.settings, **({"template": prompt.template} if prompt.template else {})}
        return RowRequest(prompt.messages, keywords, tool_use=prompt.tool_use)

    def _completion_request(self, body: Mapping[str, Any]) -> RowRequest:
        settings, prompt = (
            _settings(body, openai.COMPLETION_SETTINGS, openai.COMPLETION_REFUSED, ("prompt",)),
            body.get("prompt"),
        )
        if isinstance(prompt, list) and len(prompt) == 1:
            (prompt,) = prompt if isinstance(prompt[0], (str, list)) else (prompt,)
        if isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            return RowRequest(prompt, settings, is_ids=True)
        if not isinstance(prompt, str):
            raise InputTypeError("prompt must be a text, or token ids. Several prompts are several rows.")
        return RowRequest(prompt, {"raw": True, **settings})

    def task_inputs(self, value: Any, task: str) -> list[Any]:
        url, body = self._request(value)
        if task != "embed" or url != EMBEDDINGS:
            raise InputError(f"{url} is no request for the task {task}. Of OpenAI's, embed answers {EMBEDDINGS}.")
        _refuse_unknown(body, ("input", "encoding_format"))
        if body.get("encoding_format") not in (None, "float"):
            raise InputError("encoding_format must be 'float' in a file of JSON.")
        texts = body.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise InputTypeError("input must be a text, or a list of texts.")
        return texts

    def _request(self, value: Any) -> tuple[str, Mapping[str, Any]]:
        """A request's address and body."""
        return openai.batch_request(value if self.recognizes(value) else None, (CHAT, COMPLETIONS, EMBEDDINGS))

    # Responses --------------------------------------------------------------------------------------------------

    def text_answer(self, row: InputRow, request: RowRequest, runs: Sequence[Run]) -> JsonObject:
        is_chat = row.value["url"] == CHAT
        body = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{_digest(row)}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [
                self._chat_choice(row, request, index, run) if is_chat else self._completion_choice(index, run)
                for index, run in enumerate(runs)
            ],
            "usage": usage(runs),
        }
        return openai.batch_answer(_ids(row), row.value, 200, body)

    def task_answer(self, row: InputRow, answers: Sequence[Any], prompt_tokens: int) -> JsonObject:
        return openai.batch_answer(_ids(row), row.value, 200, openai.embeddings_answer(answers, self.model, prompt_tokens))

    def error_answer(self, row: InputRow, error: GlassError) -> JsonObject:
        if not isinstance(row.value, Mapping):  # there is no request that could have a response
            return openai.batch_failure(_ids(row), row.id if isinstance(row.id, str) else None, str(error))
        return openai.batch_answer(_ids(row), row.value, 400, openai.error_object(str(error)))

    def _chat_choice(self, row: InputRow, request: RowRequest, index: int, run: Run) -> JsonObject:
        message, called = _parse(row, request, index, run)
        count = run.settings.logprobs
        logprobs = None if count is None else openai.chat_logprobs(self.tokenizer, run.steps, count)
        return openai.chat_choice(index, message.to_dict(), logprobs, openai.finish_reason(run.finish, called))

    def _completion_choice(self, index: int, run: Run) -> JsonObject:
        count = run.settings.logprobs
        logprobs = None if count is None else openai.CompletionLogprobs(self.tokenizer, count).of(run.steps)
        return openai.completion_choice(index, run.text, logprobs, openai.finish_reason(run.finish))


def _settings(
    body: Mapping[str, Any], table: Mapping[str, ToSettings], refused: Mapping[str, Refusal], others: Sequence[str]
) -> dict[str, Any]:
    """The settings of a body; `others`: its fields that are none."""
    refused = {**refused, **BATCH_REFUSED}
    _refuse_unknown(body, (*others, *table), refused)
    refuse_fields(body.get, refused)
    settings = field_settings(body.get, table)
    bias = settings.get("logit_bias", {})
    if not isinstance(bias, Mapping) or not all(token.isdecimal() for token in bias):
        raise InputTypeError("logit_bias must be an object of token ids and their biases.")
    texts = {"num_return_sequences": settings["n"]} if "n" in settings else {}
    return sampling_settings(**settings) | texts


def _refuse_unknown(body: Mapping[str, Any], known: Sequence[str], refused: Collection[str] = ()) -> None:
    for name, value in body.items():
        if value is not None and name not in (*known, *refused, *openai.NEUTRAL, "model", "stream_options"):
            raise InputError(f"there is no field {name!r} in such a body.{did_you_mean(name, known)}")


def _parse(row: InputRow, request: RowRequest, index: int, run: Run) -> tuple[ParsedMessage, bool]:
    """One of a row's texts as content and tool calls, and whether it calls tools completely."""
    if request.tool_use is None:
        return ParsedMessage(run.text, ()), False
    parser = request.tool_use.parser(lambda call: _digest(row, index, call))
    parser.feed(run.text)
    parser.finish()
    return parser.message(), parser.called


def _digest(row: InputRow, *place: int) -> str:
    """The digest of a row, or of a place in its answer, which is equal in every run of the job."""
    return hashlib.sha256(json.dumps([row.index, row.id, *place]).encode()).hexdigest()[:24]


def _ids(row: InputRow) -> Callable[[str], str]:
    """A row's ids, by their prefixes."""
    return lambda prefix: prefix + _digest(row)
