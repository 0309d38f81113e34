"""Requests' settings as the engine's: which names they may have, and within which limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from glassformer.ground.errors import UnknownArgument, did_you_mean
from glassformer.runtime.request_settings import sampling_settings
from glassformer.serving.http.clients import SALT_FIELDS
from glassformer.serving.http.errors import HttpError
from glassformer.serving.http.inspection import Inspection
from glassformer.serving.limits import Limits

ENGINE_SETTINGS = (  # that a request may name beside its dialect's own; none of them loads a file or calls a function
    "do_sample", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "xtc_probability",
    "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta", "repetition_penalty", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_range", "dry_sequence_breakers", "no_repeat_ngram_size", "bad_words", "bad_words_ids",
    "sequence_bias", "min_new_tokens", "json_schema", "regex", "choices", "grammar", "allowed_tokens", "suppress_tokens",
    "begin_suppress_tokens", "forced_tokens", "guidance_scale", "negative_prompt", "eos_token_id",
    "global_tokens",
)  # fmt: skip
WORDS = ("bad_words", "bad_words_ids", "sequence_bias", "dry_sequence_breakers", "choices")  # each of which is encoded
REQUEST_NAMES = {  # how messages call settings that a request calls differently
    "max_new_tokens": "max_tokens", "stop_strings": "stop", "num_return_sequences": "n", "json_schema": "response_format",
    "model.patch_pairs": "POST /glass/patch-pairs", "model.tokens": "POST /glass/tokens",
}  # fmt: skip
SERVER_OPTIONS = ("adapter", "adapter_mode", "cache", "dtype", "executor", "tensor_parallel", "weights")  # the operator's


def request_spelling(name: str, *value: Any) -> str:
    """A setting as a request has it, or as the server was started with it, for messages.

    >>> request_spelling("stop_strings"), request_spelling("do_sample", True), request_spelling("top_p", 0.9)
    ('stop', 'a temperature above 0', 'top_p: 0.9')
    >>> request_spelling("executor", "plain")
    'glass serve --executor plain'
    """
    if name in SERVER_OPTIONS:
        return " ".join(["glass serve", f"--{name.replace('_', '-')}", *map(str, value)])
    if name == "do_sample" and value:
        return "a temperature above 0" if value[0] else "temperature: 0"
    name = REQUEST_NAMES.get(name, name)
    return f"{name}: {value[0]!r}" if value else name


def engine_settings(extra: Mapping[str, Any] | None, neutral: Sequence[str], fields: Collection[str] = ()) -> dict[str, Any]:
    """The fields that a dialect does not have: the engine's settings; `neutral` ones change no answer and are ignored.

    `fields`: those that it has, for a hint where a name is misspelt.
    """
    extra = extra or {}
    for name, value in extra.items():
        if name not in (*ENGINE_SETTINGS, *SALT_FIELDS, *neutral) and value is not None:
            if "glass" in fields and name in Inspection.model_fields:
                hint = f' Put it into \'glass\': {{"glass": {{"{name}": …}}}}.'
            else:
                hint = did_you_mean(name, [*ENGINE_SETTINGS, *REQUEST_NAMES.values(), *fields])
            raise UnknownArgument(f"this request takes no {name!r}.{hint} docs/serving.md lists what it takes.")
    return {name: extra[name] for name in ENGINE_SETTINGS if extra.get(name) is not None}


def check_count(name: str, values: Any, most: int, what: str = "entries") -> None:
    """Refuse a request's list that has more than a server allows."""
    if isinstance(values, Sequence | Mapping) and not isinstance(values, str) and len(values) > most:
        raise HttpError(400, f"{name} has {len(values)} {what}; this server allows {most} at most.", param=name)


def check_inputs(name: str, texts: Sequence[Any], limits: Limits) -> None:
    """Refuse no texts, and more than a server reads for one request."""
    if not 0 < len(texts) <= limits.inputs:
        raise HttpError(400, f"{name} has {len(texts)} texts; it may have from 1 to {limits.inputs}.", param=name)


def limited_settings(
    limits: Limits,
    *,
    max_tokens: int | None = None,
    n: int = 1,
    stop: str | Sequence[str] | None = None,
    logprobs: int | None = None,
    **others: Any,
) -> dict[str, Any]:
    """The settings of a request, as far as this server's limits allow them; `others` as for `sampling_settings`.

    Each of `n` texts is a run of its own.
    """
    for name, value, most in (("n", n, limits.texts), ("top_logprobs", logprobs, limits.top_logprobs)):
        if value is not None and value > most:
            raise HttpError(400, f"{name} is {value}; this server allows {most} at most.", param=name)
    check_count("stop", stop, limits.stop_strings, "texts")
    for name in WORDS:
        check_count(name, others.get(name), limits.words)
    tokens = limits.new_tokens if max_tokens is None else min(max_tokens, limits.new_tokens)
    return sampling_settings(max_tokens=tokens, n=n, stop=stop, logprobs=logprobs, **others)
