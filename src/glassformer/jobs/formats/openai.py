"""OpenAI's requests and answers, stated once for the server and for batch files.

Of a request: which field is which setting, what is refused, and what changes no answer. Of an answer: its choices, its
log-probabilities, its counts of tokens. Format: https://platform.openai.com/docs/api-reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from glassformer.decoding import Finish, Step
from glassformer.ground.errors import InputError, InputTypeError
from glassformer.jobs.formats.row_format import JsonObject
from glassformer.runtime.request_settings import Refusal, ToSettings, response_schema, unless_zero
from glassformer.text import Tokenizer

# Requests ------------------------------------------------------------------------------------------------------------

NEUTRAL = (  # fields for the provider's own accounts and caches, or for speed alone
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "prediction",
)  # fmt: skip
REPLACED = "cannot be honoured: pass tools and tool_choice, which replaced it."
TEXT_ALONE = Refusal("cannot be honoured: models here read and write text alone. Leave it out.")
CHAT_REFUSED: Mapping[str, Refusal] = {
    "functions": Refusal(REPLACED),
    "function_call": Refusal(REPLACED, (None, "none", "auto")),
    "audio": TEXT_ALONE,
    "web_search_options": TEXT_ALONE,
    "modalities": Refusal("can only be ['text']. Leave it out.", (None, ["text"])),
    "verbosity": Refusal("cannot be honoured. Say it in the system message, or leave it out.", (None, "medium")),
}
COMPLETION_REFUSED: Mapping[str, Refusal] = {
    "suffix": Refusal("cannot be honoured: models here go on at a text's end. Leave it out.", (None, "")),
}
SAMPLING_SETTINGS: Mapping[str, ToSettings] = {
    **{name: name for name in ("max_tokens", "temperature", "n", "seed", "stop")},
    "top_p": unless_zero("top_p"),
    **{name: name for name in ("frequency_penalty", "presence_penalty", "logit_bias")},
    "ignore_eos": lambda ignored: {"eos_token_id": []} if ignored else {},  # vLLM's: go on until the limit
}
CHAT_SETTINGS: Mapping[str, ToSettings] = {
    **SAMPLING_SETTINGS,
    "max_completion_tokens": "max_tokens",  # the newer name
    "logprobs": lambda wanted: {"logprobs": 0} if wanted else {},
    "top_logprobs": "logprobs",
    "response_format": lambda value: {"json_schema": response_schema(value)},
}
COMPLETION_SETTINGS: Mapping[str, ToSettings] = {**SAMPLING_SETTINGS, "logprobs": "logprobs"}


def batch_request(value: Any, urls: Collection[str]) -> tuple[str, Mapping[str, Any]]:
    """The address and the body of a row of a batch file, which may ask these addresses."""
    if not isinstance(value, Mapping) or "body" not in value:
        raise InputTypeError("a row of OpenAI's batch format is an object with custom_id, method, url and body.")
    if value.get("custom_id") is None:
        raise InputError("custom_id is missing. Give each request its own.")
    if value.get("method", "POST") != "POST":
        raise InputError(f"method is {value['method']!r}; it must be 'POST'.")
    url, body = value.get("url"), value["body"]
    if not isinstance(url, str) or url not in urls:
        raise InputError(f"url is {url!r}; it must be one of: {', '.join(urls)}.")
    if not isinstance(body, Mapping):
        raise InputTypeError("body must be an object.")
    return url, body


# Answers -------------------------------------------------------------------------------------------------------------


def batch_answer(new_id: Callable[[str], str], value: Any, status: int, body: JsonObject) -> JsonObject:
    """The row of an answer; ids are made with a prefix."""
    response = {"status_code": status, "request_id": new_id("req_"), "body": body}
    return {"id": new_id("batch_req_"), "custom_id": value.get("custom_id"), "response": response, "error": None}


def batch_failure(new_id: Callable[[str], str], custom_id: Any, message: str, code: str = "invalid_request") -> JsonObject:
    """The row of a request that has no answer."""
    error = {"code": code, "message": message}
    return {"id": new_id("batch_req_"), "custom_id": custom_id, "response": None, "error": error}


def error_object(
    message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> JsonObject:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def embeddings_answer(vectors: Sequence[Any], model: str, tokens: int) -> JsonObject:
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def chat_choice(index: int, message: JsonObject, logprobs: Any, ending: str) -> JsonObject:
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": ending}


def completion_choice(index: int, text: str, logprobs: Any = None, ending: str | None = None) -> JsonObject:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": ending}


def finish_reason(finish: Finish | None, called: bool = False) -> str:
    """Why a text ended; `called`: whether it calls tools completely."""
    if called:
        return "tool_calls"
    return "length" if finish in (Finish.LENGTH, Finish.TIME) else "stop"


def chat_logprobs(tokenizer: Tokenizer, steps: Sequence[Step], count: int) -> dict[str, Any]:
    """The log-probability of each token and of the best few; the token that ended the text is no part of it."""
    content = [
        {
            **_token_logprob(tokenizer, step.id, step.logprob),
            "top_logprobs": [_token_logprob(tokenizer, *pair) for pair in _best(step, count)],
        }
        for step in _shown(steps)
    ]
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """The log-probabilities of a completion's tokens; offsets go on from piece to piece."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._tokenizer, self._count, self._offset = tokenizer, count, 0

    def of(self, steps: Sequence[Step]) -> dict[str, Any]:
        shown = _shown(steps)
        tokens = [self._text(step.id) for step in shown]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [step.logprob for step in shown],
            "top_logprobs": [None if step.logprob is None else self._best_texts(step) for step in shown],
            "text_offset": offsets,
        }

    def _best_texts(self, step: Step) -> dict[str, float]:
        return {self._text(token): logprob for token, logprob in _best(step, self._count)}

    def _text(self, token: int) -> str:
        return self._tokenizer.token_bytes(token).decode("utf-8", "replace")


def _shown(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.finish is not Finish.EOS]


def _best(step: Step, count: int) -> list[tuple[int, float]]:
    """The ids that the model thought likeliest, and their log-probabilities."""
    if step.candidates is None:
        return []
    return list(zip(step.candidates.ids.tolist(), step.candidates.logprobs.tolist(), strict=True))[:count]


def _token_logprob(tokenizer: Tokenizer, token: int, logprob: float | None) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}
