"""OpenAI's batch files: requests to its API as lines, and its responses as lines.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": […], "max_tokens": 8}}
    {"id": "batch_req_…", "custom_id": "a", "response": {"status_code": 200, "request_id": "…", "body": {…}}, "error": null}

Format: https://platform.openai.com/docs/guides/batch. Fields of a body that would change the answer and cannot be honoured
are refused, those that change nothing are ignored. The model is the job's, whatever the body calls it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.ground.errors import GlassError, InputError, InputTypeError, did_you_mean
from glassformer.ground.typecheck import brief
from glassformer.jobs.formats.openai_answers import CompletionLogprobs, chat_logprobs, finish_reason
from glassformer.jobs.formats.row_format import InputRow, JsonObject, RowFormat, RowId, RowRequest, check_id, usage
from glassformer.runtime.request_settings import chosen_tool, response_schema, sampling_settings, template_variables
from glassformer.runtime.run import Run
from glassformer.text import Tokenizer
from glassformer.text.chat.tool_calls import ParsedMessage, chat_prompt

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
NEUTRAL = (  # fields that change no answer
    "model", "user", "metadata", "store", "service_tier", "stream_options", "safety_identifier", "prompt_cache_key",
)  # fmt: skip
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {  # what else there is, and the values that change nothing
    "stream": (False,), "echo": (False,), "suffix": ("",), "best_of": (1,), "functions": ([],),
    "function_call": ("none", "auto"), "modalities": (["text"],), "audio": (), "prediction": (),
    "verbosity": (), "web_search_options": (),
}  # fmt: skip
SAMPLING = (  # fields that all dialects like this one have
    "max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty", "logit_bias",
)  # fmt: skip
CHAT_FIELDS = (  # of a chat completion's body, beside those
    "messages", "logprobs", "top_logprobs", "max_completion_tokens", "response_format", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs",
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
        settings = chat_settings(body)
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
        settings, prompt = completion_settings(body), body.get("prompt")
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
        if not self.recognizes(value):
            raise InputTypeError("a row of OpenAI's batch format is an object with custom_id, method, url and body.")
        if value.get("custom_id") is None:
            raise InputError("custom_id is missing. Give each request its own.")
        if value.get("method", "POST") != "POST":
            raise InputError(f"method is {value['method']!r}; it must be 'POST'.")
        url, body = value.get("url"), value["body"]
        if url not in (CHAT, COMPLETIONS, EMBEDDINGS):
            raise InputError(f"url is {url!r}; it must be one of: {CHAT}, {COMPLETIONS}, {EMBEDDINGS}.")
        if not isinstance(body, Mapping):
            raise InputTypeError("body must be an object.")
        return url, body

    # Responses --------------------------------------------------------------------------------------------------

    def text_answer(self, row: InputRow, request: RowRequest, runs: Sequence[Run]) -> JsonObject:
        if is_chat := row.value["url"] == CHAT:
            choices = [self._chat_choice(run, *_parse(row, request, number, run)) for number, run in enumerate(runs)]
        else:
            choices = [self._completion_choice(run) for run in runs]
        body = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{_digest(row)}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": index, **choice} for index, choice in enumerate(choices)],
            "usage": usage(runs),
        }
        return self._response(row, 200, body)

    def task_answer(self, row: InputRow, answers: Sequence[Any], prompt_tokens: int) -> JsonObject:
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(answers)]
        tokens = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
        return self._response(row, 200, {"object": "list", "data": data, "model": self.model, "usage": tokens})

    def error_answer(self, row: InputRow, error: GlassError) -> JsonObject:
        if not isinstance(row.value, Mapping):  # there is no request that could have a response
            failure = {"code": "invalid_request", "message": str(error)}
            custom_id = row.id if isinstance(row.id, str) else None
            return {"id": _request_id(row), "custom_id": custom_id, "response": None, "error": failure}
        body = {"error": {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}}
        return self._response(row, 400, body)

    def _response(self, row: InputRow, status: int, body: JsonObject) -> JsonObject:
        response = {"status_code": status, "request_id": f"req_{_digest(row)}", "body": body}
        return {"id": _request_id(row), "custom_id": row.value.get("custom_id"), "response": response, "error": None}

    def _chat_choice(self, run: Run, message: ParsedMessage, called: bool) -> JsonObject:
        count = run.settings.logprobs
        return {
            "message": message.to_dict(),
            "logprobs": None if count is None else chat_logprobs(self.tokenizer, run.steps, count),
            "finish_reason": "tool_calls" if called else finish_reason(run.finish),
        }

    def _completion_choice(self, run: Run) -> JsonObject:
        count = run.settings.logprobs
        logprobs = None if count is None else CompletionLogprobs(self.tokenizer, count).of(run.steps)
        return {"text": run.text, "logprobs": logprobs, "finish_reason": finish_reason(run.finish)}


# Settings ------------------------------------------------------------------------------------------------------------


def chat_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a chat completion's body."""
    settings = _common_settings(body, CHAT_FIELDS)
    if body.get("max_completion_tokens") is not None:
        settings["max_new_tokens"] = body["max_completion_tokens"]
    if body.get("logprobs"):
        settings["logprobs"] = body.get("top_logprobs") or 0
    if (schema := response_schema(body.get("response_format"))) is not None:
        settings["json_schema"] = schema
    return settings


def completion_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a completion's body."""
    settings = _common_settings(body, ("prompt", "logprobs"))
    return settings if body.get("logprobs") is None else {**settings, "logprobs": body["logprobs"]}


def _common_settings(body: Mapping[str, Any], own: Sequence[str]) -> dict[str, Any]:
    _refuse_unknown(body, (*own, *SAMPLING, "n"))
    fields = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    bias = fields.get("logit_bias", {})
    if not isinstance(bias, Mapping) or not all(token.isdecimal() for token in bias):
        raise InputTypeError("logit_bias must be an object of token ids and their biases.")
    if (n := body.get("n")) is None:
        return sampling_settings(**fields)
    return {**sampling_settings(n=n, **fields), "num_return_sequences": n}


def _refuse_unknown(body: Mapping[str, Any], known: Sequence[str]) -> None:
    for name, value in body.items():
        if name in known or name in NEUTRAL or value is None:
            continue
        if name not in UNSUPPORTED:
            raise InputError(f"there is no field {name!r} in such a body.{did_you_mean(name, known)}")
        if value not in UNSUPPORTED[name]:
            raise InputError(f"{name} is not supported in a batch. Leave it out.")


def _parse(row: InputRow, request: RowRequest, number: int, run: Run) -> tuple[ParsedMessage, bool]:
    """A row's text of this number as content and tool calls, and whether it calls tools completely."""
    if request.tool_use is None:
        return ParsedMessage(run.text, ()), False
    parser = request.tool_use.parser(lambda index: _digest(row, number, index))
    parser.feed(run.text)
    parser.finish()
    return parser.message(), parser.called


def _digest(row: InputRow, *numbers: int) -> str:
    """The same for a row, or for the part of its answer with these numbers, whenever the job runs."""
    return hashlib.sha256(json.dumps([row.number, row.id, *numbers]).encode()).hexdigest()[:24]


def _request_id(row: InputRow) -> str:
    return f"batch_req_{_digest(row)}"
